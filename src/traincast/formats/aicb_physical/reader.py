"""What reads physical AICB workloads."""

from traincast.formats.aicb_physical.grammar import parse
from traincast.formats.aicb_physical.read import build
from traincast.formats.aicb_physical.steps import describe
from traincast.formats.contract import text_reader

READER = text_reader(one="a physical AICB workload", parse=parse, describe=describe, build=build)
