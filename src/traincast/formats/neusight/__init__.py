"""NeuSight's files: operator graphs of traced models, its predictions of them, and forecasts that were made of those.

An operator graph lists what each node of a model runs, with shapes and without times; a prediction adds times in ms. An
operator forecast is one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (graphs and predictions), and an exporter that writes predictions as rows with the fields of
AICB's ``Work_Item``.
"""

from traincast.formats.contract import later, text_format

_OPTIONS = (
    *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
    *("layers", "layer_block", "dtype", "forward_only"),
)

text_format(
    "neusight",
    "NeuSight operator forecast",
    one="a NeuSight forecast",
    options=_OPTIONS,
    looks_like=later("traincast.formats.neusight.grammar:looks_like"),
    most_sure=0.95,
    parse=later("traincast.formats.neusight.grammar:parse"),
    describe=later("traincast.formats.neusight.inspection:describe"),
    build=later("traincast.formats.neusight.read:build"),
)

text_format(
    "neusight-graph",
    "NeuSight operator graph",
    one="an operator graph of NeuSight",
    options=_OPTIONS,
    looks_like=later("traincast.formats.neusight.opgraph:looks_like"),
    most_sure=0.97,
    parse=later("traincast.formats.neusight.opgraph:parse"),
    describe=later("traincast.formats.neusight.inspection:describe"),
    build=later("traincast.formats.neusight.read:build"),
)
