"""What reads AICB/SimAI workloads."""

from traincast.formats.aicb.grammar import parse
from traincast.formats.aicb.inspection import describe
from traincast.formats.aicb.read import build
from traincast.formats.contract import text_reader

READER = text_reader(one="an AICB workload", parse=parse, describe=describe, build=build)
