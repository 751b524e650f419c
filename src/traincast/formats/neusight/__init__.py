"""NeuSight operator forecasts: one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (forecasts the operators), and an exporter that writes them as rows with
the fields of AICB's ``Work_Item``.
"""

from traincast.formats.contract import text_format
from traincast.formats.neusight.grammar import looks_like, parse
from traincast.formats.neusight.inspection import describe
from traincast.formats.neusight.read import build

text_format(
    "neusight",
    "NeuSight operator forecast",
    one="a NeuSight forecast",
    options=(
        *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
        *("layers", "layer_block", "dtype", "forward_only"),
    ),
    looks_like=looks_like,
    parse=parse,
    describe=describe,
    build=build,
)
