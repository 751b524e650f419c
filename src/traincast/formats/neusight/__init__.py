"""NeuSight's files: operator graphs of traced models, its predictions of them, and forecasts that were made of those.

An operator graph lists what each node of a model runs, with shapes and without times; a prediction adds times in ms. An
operator forecast is one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (graphs and predictions), and an exporter that writes predictions as rows with the fields of
AICB's ``Work_Item``.
"""

from traincast.formats.contract import FORMATS, Format
from traincast.formats.neusight.sniff import looks_like, looks_like_graph
from traincast.formats.writer import WRITERS

_OPTIONS = frozenset(
    {
        *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
        *("layers", "layer_block", "dtype", "forward_only"),
    }
)

FORMATS.register("neusight")(
    Format(
        name="neusight",
        title="NeuSight operator forecast",
        options=_OPTIONS,
        looks_like=looks_like,
        most_sure=0.95,
        reader="traincast.formats.neusight.reader",
    )
)

FORMATS.register("neusight-graph")(
    Format(
        name="neusight-graph",
        title="NeuSight operator graph",
        options=_OPTIONS,
        looks_like=looks_like_graph,
        most_sure=0.97,
        reader="traincast.formats.neusight.graph_reader",
    )
)
WRITERS.registered_in("traincast.formats.neusight.write", "neusight")
