"""What reads NeuSight's operator forecasts."""

from traincast.formats.contract import text_reader
from traincast.formats.neusight.grammar import parse
from traincast.formats.neusight.inspection import describe
from traincast.formats.neusight.read import build

READER = text_reader(one="a NeuSight forecast", parse=parse, describe=describe, build=build)
