"""What reads rank traces of Megatron-LM as Echo's tracer writes them."""

from traincast.formats.contract import Reader
from traincast.formats.echo.computations import computations
from traincast.formats.echo.inspection import inspect_file
from traincast.formats.echo.read import read_recorded, read_workload, traced_loads

READER = Reader(
    describe=inspect_file,
    read_run=read_workload,
    recorded=read_recorded,
    expert_loads=traced_loads,
    computations=computations,
)
