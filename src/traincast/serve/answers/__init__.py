"""What happens in a worker: a function for each endpoint, of its record and a workbench; none knows of the web.

Each module imports all that it needs; a worker loads the modules whose answers it is asked for.
"""

from typing import TYPE_CHECKING

from traincast.lazy import names_on_demand

if TYPE_CHECKING:
    from traincast.serve.answers.advices import advice as advice
    from traincast.serve.answers.advices import assumptions as assumptions
    from traincast.serve.answers.bundled import examples as examples
    from traincast.serve.answers.checks import check as check
    from traincast.serve.answers.comparisons import compare as compare
    from traincast.serve.answers.comparisons import scaling as scaling
    from traincast.serve.answers.comparisons import whatif as whatif
    from traincast.serve.answers.explanations import explain as explain
    from traincast.serve.answers.exports import export as export
    from traincast.serve.answers.forecasts import forecast as forecast
    from traincast.serve.answers.form import about as about
    from traincast.serve.answers.plans import plan as plan
    from traincast.serve.answers.plans import why as why
    from traincast.serve.answers.readings import read as read
    from traincast.serve.answers.timelines import timeline as timeline

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "traincast.serve.answers.advices": "advice assumptions",
        "traincast.serve.answers.bundled": "examples",
        "traincast.serve.answers.checks": "check",
        "traincast.serve.answers.comparisons": "compare scaling whatif",
        "traincast.serve.answers.explanations": "explain",
        "traincast.serve.answers.exports": "export",
        "traincast.serve.answers.forecasts": "forecast",
        "traincast.serve.answers.form": "about",
        "traincast.serve.answers.plans": "plan why",
        "traincast.serve.answers.readings": "read",
        "traincast.serve.answers.timelines": "timeline",
    },
)
