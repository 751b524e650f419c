"""What reads Chakra execution traces."""

from traincast.formats.chakra.inspection import inspect_file
from traincast.formats.chakra.read import read_workload
from traincast.formats.contract import Reader

READER = Reader(describe=inspect_file, read_run=read_workload)
