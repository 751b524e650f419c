"""Plain English: words that an engineer would not say, and what to say instead; names that say what they stand for.

A word is looked for in the sources with their comments and names, in the pages, the README and what ``--help`` prints.
Names of files' keys, of flags and of codes are contracts and stay; each such place stands with its reason.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import traincast
from traincast.cli.main import cli

SOURCE = Path(traincast.__file__).parent
ROOT = Path(__file__).parent.parent
TEXTS = (".py", ".toml", ".csv", ".js", ".html", ".css")


class Word(NamedTuple):
    """A word that is not said."""

    found: str
    """Regular expression of it, in any case; a letter or digit before or after makes another word."""
    say: str
    """What to say instead."""
    allowed: tuple[tuple[str, str], ...] = ()
    """Regular expressions of lines, with ``FILE:NUMBER: `` before them, in which it stays, each with the reason."""


MONEY = (
    r"gpu[-_]hour[-_]price"
    r"|^src/traincast/(sweeps/|analysis/summary|job/training_run|data/(quantities|job/)|api/planning)"
    r"|^src/traincast/(cli/(cases|options|plan|sweep)|report/terminal/training_run)|^\w+ --help: .*(price|PRICE)"
    r"|^docs/(sweep|results|plan|predict|glossary)\.md.*\bprices?\b|^src/traincast/(data/serve/(glossary\.csv|constraints\.js)|serve/answers/plans)",
    "money: what a GPU costs for an hour",
)
WORDS = (
    Word(
        r"oddit(y|ies)",
        "warnings",
        ((r": +oddities(=|: tuple)|inspection\.oddities", "a key of traincast.inspection/1"),),
    ),
    Word(
        r"pric(e|es|ed|ing|er)",
        "cost, estimate",
        (
            MONEY,
            (r"--pricing|pricing: str|pricing == ", "a flag: SimAI's own sum"),
            (r"PRICED|`priced`", "the provenance `priced` of ops.csv"),
            (r"compute-priced", "a code of a note"),
            (r"def price\(self\)", "another name of `OperatorCost.cost`, which users call"),
        ),
    ),
    Word(r"dear(er|est|ly)?", "expensive"),
    Word(
        r"hand-?overs?",
        "launch overhead",
        (
            (
                r"handover_s|HANDOVER|\bhandover,|\[handover\]|'handover'|\"handover\"",
                "a key of framework files, and a class of work in factors",
            ),
        ),
    ),
    Word(r"meetings?|joints?", "rendezvous"),
    Word(
        r"beside",
        "next to (a place), alongside, overlapped with (in time), in addition to",
        ((r"size-beside-none", "a code of a note"),),
    ),
    Word(r"matrix products?", "GEMM"),
    Word(r"look-ups?", "lookup"),
    Word(r"comput(e|es|ed|ing) again", "recompute, recomputed"),
    Word(r"habits? of memory|memory habits?", "memory policy"),
    Word(r"(?<!if )not said", "not specified"),
    Word(r"well (longer|slower)", "much longer, much slower"),
    Word(r"(its|their) like", "its peers, their peers"),
    Word(r"predicts? a further token", "MTP layer"),
    Word(r"remarks?", "warnings", ((r"remarks\.csv", "a file of the project"),)),
    Word(r"begins? anew", "starts over"),
    Word(r"[`'\"]sure[`'\"]", "confidence"),
    Word(r"hangs? on", "depend on"),
    Word(r"messages? between stages", "P2P, pipeline send/recv"),
    Word(
        r"(?<!there )(is|are) no(?= )(?! (longer|faster|slower|more|less|better|worse|larger|smaller|other|cheaper))",
        "is not a ...",
    ),
)


def _lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a file, each with its place in a clone, also where the package is installed elsewhere."""
    shown = "src" / path.relative_to(SOURCE.parent) if path.is_relative_to(SOURCE) else path.relative_to(ROOT)
    return [(f"{shown}:{at}", line) for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)]


def _helped(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the help of a command and of those below it."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield from ((f"{name} --help", line) for line in command.get_help(context).splitlines())
    for each in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, each)
        if below is not None:
            yield from _helped(below, each, context)


def _pattern(found: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?:{found})(?![a-z0-9])", re.IGNORECASE)


@cache
def _suspects() -> tuple[tuple[str, str], ...]:
    """Return all lines that somebody reads and that have one of the words, with their places."""
    sources = [each for each in sorted(SOURCE.rglob("*")) if each.suffix in TEXTS and "__pycache__" not in each.parts]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    said = chain(chain.from_iterable(map(_lines, (*sources, *pages))), _helped(cli, "traincast"))
    any_of_them = _pattern("|".join(each.found for each in WORDS))
    return tuple((place, line) for place, line in said if any_of_them.search(line))


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS, ids=[each.say.partition(" (")[0] for each in WORDS])
def test_a_word_is_not_said(word):
    looked_for, stays = _pattern(word.found), [re.compile(allowed) for allowed, _ in word.allowed]
    found = [
        f"{place}: {line.strip()[:120]}"
        for place, line in _suspects()
        if looked_for.search(line) and not any(each.search(f"{place}: {line}") for each in stays)
    ]
    assert found == [], f"say {word.say}"


def test_every_exception_is_one():
    for word in WORDS:
        lines = [f"{place}: {line}" for place, line in _suspects() if _pattern(word.found).search(line)]
        for allowed, _ in word.allowed:
            assert any(re.search(allowed, line) for line in lines), f"{allowed!r} of {word.say!r} is nowhere"


SAME_NAMES = {"Exchange", "Peak", "Pipeline", "Sequences", "Setting", "Work"}
"""Public classes of the same name in two rooms."""


def _classes_and_functions() -> Iterator[tuple[Path, ast.ClassDef | ast.FunctionDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield path.relative_to(SOURCE), node


@pytest.mark.slow
def test_no_function_is_called_of():
    found = {str(path) for path, node in _classes_and_functions() if node.name == "of"}
    assert not found, "say what it returns: from_..., or the name of what is found"


@pytest.mark.slow
def test_a_public_class_has_a_name_of_its_own():
    places = defaultdict(set)
    for path, node in _classes_and_functions():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and path.parts[0] != "formats":
            places[node.name].add(str(path))
    assert {name for name, paths in places.items() if len(paths) > 1} == SAME_NAMES
