"""NeuSight operator forecasts: one rank's operators as rows, with times in ms and sizes in elements.

Source: sitar-lab/NeuSight (forecasts the operators), and an exporter that writes them as rows with
the fields of AICB's ``Work_Item``.
"""

from traincast.formats.contract import FORMATS, FileFormat, of_one_file
from traincast.formats.neusight.inspection import inspect_file
from traincast.formats.neusight.read import read_workload
from traincast.formats.neusight.table import looks_like

FORMATS.register("neusight")(
    FileFormat(
        name="neusight",
        title="NeuSight operator forecast",
        options=frozenset(
            {
                *("gpus", "tp", "dp", "pp", "vpp", "microbatches", "schedule"),
                *("layers", "layer_block", "dtype", "forward_only"),
            }
        ),
        looks_like=looks_like,
        describe=inspect_file,
        read_run=of_one_file("a NeuSight forecast", read_workload),
    )
)
