"""What reads NeuSight's operator graphs, and its predictions of them."""

from traincast.formats.contract import text_reader
from traincast.formats.neusight.inspection import describe
from traincast.formats.neusight.opgraph import parse
from traincast.formats.neusight.read import build

READER = text_reader(one="an operator graph of NeuSight", parse=parse, describe=describe, build=build)
