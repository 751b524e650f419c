"""What can be asked: the name of each endpoint, what it takes and what it answers.

The server makes routes and their description of this list, and hands each call to a worker by its name: what is done
there is the function of that name in `traincast.serve.answers`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from traincast.serve.records.advices import AdviceAnswer, AssumptionsAnswer
from traincast.serve.records.comparisons import (
    ComparisonAnswer,
    Scaling,
    ScalingRecord,
    Scenarios,
    WhatIfAnswer,
    WhatIfRecord,
)
from traincast.serve.records.explanations import CheckAnswer, CheckRecord, ExplanationShown, FilesRecord
from traincast.serve.records.forecasts import (
    Exported,
    ExportRecord,
    ForecastAnswer,
    JobRecord,
    PackedTimeline,
    TimelineRecord,
)
from traincast.serve.records.forms import About, Examples, Nothing, PastedJob, TextRecord
from traincast.serve.records.plans import PlanAnswer, PlanRecord, WhyNotShown, WhyRecord


class Endpoint(Struct, frozen=True):
    """One thing that can be asked."""

    name: str
    """Its path below ``/api/``."""
    takes: type
    answers: type
    text: str
    """What it does, in a line."""
    slow: bool = False
    """Whether it takes seconds, and quick ones must not wait for it."""
    long: bool = False
    """Whether it is a task: it answers with an id at once, and tells how far it is."""

    def decode(self, body: bytes) -> Any:  # noqa: ANN401
        """Return what it takes, of JSON.

        Raises
        ------
        msgspec.ValidationError
            If it is something else.
        """
        return msgspec.json.decode(body or b"{}", type=self.takes)


_ALL = (
    Endpoint("about", Nothing, About, "Say what a form is made of: fields, models, clusters, words and units."),
    Endpoint("examples", Nothing, Examples, "List what there is to try."),
    Endpoint("forecast", JobRecord, ForecastAnswer, "Forecast one step of a job."),
    Endpoint(
        "read",
        TextRecord,
        PastedJob,
        "Read flags, a script, a recipe, a configuration file or a command line as a job.",
    ),
    Endpoint(
        "export",
        ExportRecord,
        Exported,
        "Write a job as a file: for us, for a framework, for a spreadsheet, as a picture.",
    ),
    Endpoint(
        "compare",
        Scenarios,
        ComparisonAnswer,
        "Forecast up to four scenarios, with the interval of the difference of every two.",
    ),
    Endpoint(
        "scaling",
        ScalingRecord,
        Scaling,
        "Forecast a job with several values of one field, such as its GPUs or its sequence length.",
    ),
    Endpoint("whatif", WhatIfRecord, WhatIfAnswer, "Try changes of a step: each alone, and several together."),
    Endpoint("timeline", TimelineRecord, PackedTimeline, "Return the operations of a step, and when they run."),
    Endpoint(
        "advice", JobRecord, AdviceAnswer, "Say what to change of a job, each change with what it saves.", slow=True
    ),
    Endpoint(
        "assumptions",
        JobRecord,
        AssumptionsAnswer,
        "Say what each assumption of a forecast may cost: forecasts with the other values that it could have.",
        slow=True,
    ),
    Endpoint("why", WhyRecord, WhyNotShown, "Say why a layout of a plan is not the best.", slow=True),
    Endpoint(
        "check",
        CheckRecord,
        CheckAnswer,
        "Say whether a run is as fast as it should be by its log, and what would explain it.",
        slow=True,
    ),
    Endpoint(
        "plan",
        PlanRecord,
        PlanAnswer,
        "Find the best layouts of a job that leaves its layout open, on one cluster or several.",
        long=True,
    ),
    Endpoint(
        "explain", FilesRecord, ExplanationShown, "Say what files are, and explain the step that they hold.", long=True
    ),
)
ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType({each.name: each for each in _ALL})
"""All of them by name."""
