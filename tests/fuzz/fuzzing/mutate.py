"""Mutations that know the shape of what they damage: lines, cells, numbers, keys of JSON and TOML, bytes."""

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

from fuzzing.values import near, value

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9.\-]*")
_SEPARATORS = ("\t", ",", " ", "=", ":", ";")
_MARKS = ("\x00", "\x1b[2J", "\ufeff", "\r\n", "\x85", "\u2028", "\t", '"', "'", "[", "]", "{", "(", ",", "=", "#")

_LARGE_BYTES = 4 << 20

Mutation = Callable[[str, random.Random], str]


def mutated(name: str, content: bytes, rng: random.Random) -> bytes:
    """Return a file with one to three mutations that suit its format.

    Parameters
    ----------
    name : str
        Its name; the suffix says the format.
    content : bytes
        What it holds.
    rng : random.Random
        Decides everything.
    """
    suffix = name.rpartition(".")[2]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.06:
            content = _bytes(content, rng)
            continue
        text = content.decode("utf-8", "surrogateescape")
        chosen = rng.choice((*_GENERAL, *_OF_SUFFIX.get(suffix, _LINES)))
        content = chosen(text, rng).encode("utf-8", "surrogateescape")
    return content


def _bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, repeat or pack bytes."""
    data, at = bytearray(content), rng.randrange(len(content) + 1)
    match rng.randrange(6):
        case 5:
            # Often enough to be seen, and not so often that it is most of the time.
            many = content * (_LARGE_BYTES // max(len(content), 1)) if rng.random() < 0.1 else content
            return gzip.compress(many, 1, mtime=0) if rng.random() < 0.5 else many
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            return bytes(data[:at])
        case 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 64))))
        case 3:
            return b"\x1f\x8b\x08" + bytes(data[at:])
        case _:
            return content.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")))
    return bytes(data)


def constant(content: bytes, rng: random.Random) -> bytes:
    """Return a long file of one piece again and again, perhaps after the beginning of a sound one, perhaps packed.

    What reads it in time or memory that grows faster than the file shows it here.
    """
    piece = rng.choice(PIECES).encode()
    # Packed, a little file is a large one.
    packed = rng.random() < 0.4
    size = 1 << rng.randrange(12, 25 if packed else 19)
    kept = content[: rng.randrange(len(content) + 1)] if rng.random() < 0.6 else b""
    if kept and rng.random() < 0.5:
        lines = kept.splitlines(keepends=True)
        piece = rng.choice(lines)
    many = kept + piece * (size // len(piece))
    return gzip.compress(many, 1, mtime=0) if packed else many


PIECES = (
    *"\n \t\r0a_,;.:-+=/*#()[]{}<>\"'\\|@$%&!?~^\0",
    *("\r\n", "a ", "a,", "0,", "0.", "-0", "a=", "a: b\n", "- a\n", "a = 1\n", "[a]\n", "${", "$((", "\\\n", '"a", '),
    *("[1,0]<stdout>", "1:", "{}", "{},", "[],", "0 0 a\n", "a\n\n", " #", "# a\n", "(a)*1"),
)
"""What constant files are made of."""


def _replace(text: str, found: list[re.Match[str]], rng: random.Random, new: Callable[[str], str]) -> str:
    if not found:
        return text + value(rng)
    match = rng.choice(found)
    return text[: match.start()] + new(match.group()) + text[match.end() :]


def _a_number(text: str, rng: random.Random) -> str:
    return _replace(text, list(_NUMBER.finditer(text)), rng, lambda old: near(old, rng))


def _equal_numbers(text: str, rng: random.Random) -> str:
    """Change one number wherever it stands, so that what must agree still does."""
    found = _NUMBER.findall(text)
    if not found:
        return text
    old, new = rng.choice(found), value(rng)
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", lambda _: new, text)


def _a_word(text: str, rng: random.Random) -> str:
    words = list(_WORD.finditer(text))
    others = [match.group() for match in words] or [""]
    return _replace(text, words, rng, lambda _: value(rng) if rng.random() < 0.5 else rng.choice(others))


def _a_mark(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(_MARKS) + text[at + rng.choice((0, 1)) :]


def _a_line(text: str, rng: random.Random) -> str:
    """Drop, repeat, move, cut or join lines."""
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        case 4:
            lines[at : at + 2] = ["".join(lines[at : at + 2])]
        case _:
            lines[at:at] = [lines[at]] * rng.choice((2, 10, 100))
    return "\n".join(lines)


def _a_cell(text: str, rng: random.Random) -> str:
    """Change a cell of a line, by whichever separator the line has."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    separator = rng.choice([each for each in _SEPARATORS if each in lines[at]] or [" "])
    cells = lines[at].split(separator)
    cell = rng.randrange(len(cells))
    match rng.randrange(5):
        case 0:
            del cells[cell]
        case 1:
            cells.insert(cell, value(rng))
        case 2:
            cells.insert(cell, cells[rng.randrange(len(cells))])
        case _:
            cells[cell] = near(cells[cell], rng)
    lines[at] = separator.join(cells)
    return "\n".join(lines)


def _a_column(text: str, rng: random.Random) -> str:
    """Change one cell of a column on every line, drop the column, or rename it in the header."""
    lines = text.split("\n")
    separator = "\t" if "\t" in lines[0] else ","
    column, new, whole = rng.randrange(lines[0].count(separator) + 1), value(rng), rng.random()
    changed = []
    for at, line in enumerate(lines):
        cells = line.split(separator)
        if column < len(cells) and line:
            if whole < 0.3:
                del cells[column]
            elif whole < 0.7 and at > 0:
                cells[column] = new
            elif at == 0:
                cells[column] = new if rng.random() < 0.5 else cells[rng.randrange(len(cells))]
        changed.append(separator.join(cells))
    return "\n".join(changed)


def _a_setting(text: str, rng: random.Random) -> str:
    """Change a key or value of TOML, drop, double or add one, or nest deeply."""
    lines = text.split("\n")
    settings = [at for at, line in enumerate(lines) if "=" in line and not line.startswith("#")] or [0]
    at = rng.choice(settings)
    key, _, given = lines[at].partition("=")
    bare = given.partition(" #")[0].strip()
    match rng.randrange(9):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, f"{key}= {bare}")
        case 2:
            lines[at] = f"{json.dumps(value(rng))} = {bare}"
        case 3:
            lines[at] = f"{key}= [{bare}]" if rng.random() < 0.5 else f'{key}= {{ value = {bare}, source = "x" }}'
        case 4:
            lines[at] = f"{key}= {json.dumps(value(rng))}"
        case 5:
            lines[at] = ".".join(["a"] * rng.choice((10, 1000))) + " = 1"
        case 6:
            lines[at] = f"[{value(rng)}]"
        case _:
            lines[at] = f"{key}= {near(bare, rng)}"
    return "\n".join(lines)


def _a_node(text: str, rng: random.Random) -> str:
    """Change, drop or double a value anywhere in a JSON document, or rename a key."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _a_number(text, rng)
    places: list[tuple[Any, Any]] = []
    _walk(document, places)
    if not places:
        return value(rng)
    parent, key = rng.choice(places)
    match rng.randrange(7):
        case 0:
            del parent[key]
        case 1:
            parent[key] = rng.choice((None, True, [], {}, "", [parent[key]], {"a": parent[key]}))
        case 2 if isinstance(parent, dict):
            parent[value(rng)] = parent.pop(key)
        case 3 if isinstance(parent, list):
            parent.extend([parent[key]] * rng.choice((1, 50)))
        case _:
            old = parent[key]
            new = near(str(old), rng) if isinstance(old, int | float) else value(rng)
            parent[key] = _as_json(new)
    return json.dumps(document).replace('"\\u0001', "").replace('\\u0001"', "")


def _walk(node: Any, places: list[tuple[Any, Any]]) -> None:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        places.append((node, key))
        _walk(node[key], places)


def _as_json(text: str) -> Any:
    """Return a number as such; one that Python cannot hold is marked, to stand in the document as it is."""
    if not _NUMBER.fullmatch(text):
        return text
    return f"\x01{text}\x01"


_GENERAL: tuple[Mutation, ...] = (_a_number, _a_number, _equal_numbers, _a_word, _a_mark)
_LINES: tuple[Mutation, ...] = (_a_line, _a_cell, _a_cell)
_TABLE: tuple[Mutation, ...] = (_a_line, _a_cell, _a_cell, _a_column, _a_column)
_TOML: tuple[Mutation, ...] = (_a_line, _a_setting, _a_setting, _a_setting)
_JSON: tuple[Mutation, ...] = (_a_node, _a_node, _a_node, _a_node, _a_line)
_OF_SUFFIX: dict[str, tuple[Mutation, ...]] = {"csv": _TABLE, "tsv": _TABLE, "toml": _TOML, "json": _JSON}
