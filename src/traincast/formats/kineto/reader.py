"""What reads traces of PyTorch's profiler."""

from traincast.formats.contract import Reader
from traincast.formats.kineto.computations import computations
from traincast.formats.kineto.inspection import inspect_file
from traincast.formats.kineto.read import read_workload

READER = Reader(describe=inspect_file, read_run=read_workload, computations=computations)
