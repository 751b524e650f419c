"""NeuSight operator forecasts: one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (forecasts the operators), and an exporter that writes them as rows with
the fields of AICB's ``Work_Item``.
"""

from traincast.formats.contract import later, text_format

text_format(
    "neusight",
    "NeuSight operator forecast",
    one="a NeuSight forecast",
    options=(
        *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
        *("layers", "layer_block", "dtype", "forward_only"),
    ),
    looks_like=later("traincast.formats.neusight.grammar:looks_like"),
    most_sure=0.95,
    parse=later("traincast.formats.neusight.grammar:parse"),
    describe=later("traincast.formats.neusight.inspection:describe"),
    build=later("traincast.formats.neusight.read:build"),
)
