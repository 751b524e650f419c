"""The glossary has every word that readers of a result or of a printed table meet, once."""

import ast
import re
from pathlib import Path

import pytest

import traincast
from traincast.analysis.gpu_time import GpuTime, StreamIdle
from traincast.analysis.summary import Interval
from traincast.report.json import RESULT_KEYS
from traincast.simulation.result import BREAKDOWN_KEYS
from traincast.simulation.result_records import (
    CollectiveResult,
    MemoryResult,
    ParallelFacts,
    PartResult,
    RankResult,
    StragglerResult,
    WhatIfResult,
)

ROOT = Path(__file__).parents[2]
UNITS = ("_s", "_bytes")
RECORDS = (
    *(RankResult, CollectiveResult, PartResult, GpuTime, StreamIdle, ParallelFacts),
    *(StragglerResult, WhatIfResult, Interval, MemoryResult),
)


def words_of(cell):
    """Return the words that a line of the glossary defines; a list of degrees or groups defines each of them."""
    quoted = {word for listed in re.findall(r"`([^`]*)`", cell) for word in listed.split()}
    return quoted | {" ".join(re.sub(r"`[^`]*`", "", word).split()) for word in cell.split(",")} - {""}


def defined():
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return [word.lower() for cell, _ in lines if cell != "word" for word in words_of(cell)]


def headings():
    """Return the headings of every table that is printed, as the views declare them."""
    for path in (Path(traincast.__file__).parent / "report" / "terminal").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "Column":
                heading = node.args[0]
                if isinstance(heading, ast.Constant) and heading.value.strip():
                    yield " ".join(heading.value.split())


def keys():
    yield from RESULT_KEYS
    for kind in RECORDS:
        yield from (field for field in kind.__struct_fields__)
    yield from BREAKDOWN_KEYS


@pytest.mark.parametrize("heading", sorted(set(headings())))
def test_every_heading_of_a_table_is_defined(heading):
    known = set(defined())
    parts = [heading] if heading in known else re.split(r"/ ?", heading)
    assert {part.lower() for part in parts} <= known


@pytest.mark.parametrize("key", sorted(set(keys())))
def test_every_key_of_a_result_is_defined(key):
    word = key
    for unit in UNITS:
        word = word.removesuffix(unit)
    assert {key, word, word.replace("_", " ")} & set(defined())


def test_no_word_is_defined_twice():
    found = defined()
    assert sorted(found) == sorted(set(found))


def test_there_are_headings_and_the_words_readers_asked_for():
    assert len(set(headings())) > 50
    asked = {"template", "segment", "framework", "factor", "traffic", "gap", "rendezvous", "symmetry reduction"}
    assert asked <= set(defined())
