"""The YAML that configuration files are written in: mappings and lists in blocks or brackets, scalars, comments.

What else YAML has (anchors, aliases, tags, merge keys, several documents, plain scalars over several lines, ``? key``)
is refused with its line. Scalars are read as YAML 1.1 does, which PyYAML implements (``yes`` and ``off`` are booleans),
but that ``1e-5`` is a number as in YAML 1.2, and keys are always texts.
Source: YAML 1.1 (yaml.org/spec/1.1), its types null, bool, int and float (yaml.org/type).
"""

import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from traincast.errors import FormatError
from traincast.files import read_text
from traincast.units import quoted

_MOST_DEPTH = 32
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"))
_FALSE = frozenset(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"))
_INT = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]*(?:[eE][-+]?[0-9]{1,3})?")
_NOT_READ = {
    "&": "an anchor",
    "*": "an alias",
    "!": "a tag",
    "%": "a directive",
    "@": "a reserved character",
    "`": "a reserved character",
}
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", "0": "\0", "r": "\r", " ": " "}
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#\[\]{},"'&*!|>%@`?-][^#]*?|-[^\s#][^#]*?)(?<!\s)\s*+:(?:\s+|$)"""
)
_OPENING, _CLOSING = "[{", "]}"


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds (errors as `traincast.files.read_text` and `parse_yaml`)."""
    return parse_yaml(read_text(path, encoding="utf-8-sig"), str(path))


def parse_yaml(text: str, shown: str) -> object:
    """Return what a YAML text holds: mappings, lists, texts, numbers, booleans and None; `shown` is its file.

    Raises
    ------
    FormatError
        With the line of what is not read, of a key that is given twice, or of what is nested too deeply.
    """
    reader = _Reader(text.splitlines(), shown)
    found = reader.block(-1, 0)
    if reader.peek() is not None:
        raise reader.wrong("stands less deep than what is before it, or begins another document")
    return found


class _Reader(Struct):
    """The lines of a file, and where it is read."""

    lines: list[str]
    shown: str
    at: int = 0

    def wrong(self, what: str, line: int | None = None) -> FormatError:
        place = self.at if line is None else line
        return FormatError(f"{quoted(self.lines[place].strip()[:60])} {what}", self.shown, place + 1)

    def peek(self) -> tuple[int, str] | None:
        """Return the indent and text of the next line that says something; None at the end."""
        while self.at < len(self.lines):
            raw = self.lines[self.at]
            text = _without_comment(raw)
            bare = text.strip()
            if bare == "...":
                self.at = len(self.lines)
            elif bare and not (text.startswith("---") and self.at == self._first()):
                indent = len(text) - len(text.lstrip())
                if "\t" in raw[:indent]:
                    raise self.wrong("is indented with a tab, which YAML does not allow")
                return indent, bare
            else:
                self.at += 1
        return None

    def _first(self) -> int:
        return next((place for place, line in enumerate(self.lines) if _without_comment(line).strip()), 0)

    def block(self, above: int, depth: int) -> object:
        """Return the mapping, list or scalar whose lines stand deeper than `above`."""
        said = self.peek()
        if said is None or said[0] <= above:
            return None
        if depth > _MOST_DEPTH:
            raise self.wrong("is nested too deeply")
        indent, text = said
        if text == "-" or text.startswith("- "):
            return self._sequence(indent, depth)
        if _KEY.match(text):
            return self._mapping(indent, depth)
        return self._value(text, indent, depth)

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (said := self.peek()) is not None and said[0] == indent:
            key = _KEY.match(said[1])
            if key is None and said[1].startswith("---"):
                break
            if key is None:
                raise self.wrong("is no 'key: value'")
            name = _plain(key[1].strip())
            if name == "<<" or name in found:
                raise self.wrong("merges another mapping, which is not read" if name == "<<" else "is given twice")
            found[name] = self._value(said[1][key.end() :], indent, depth, lists_at=indent)
        if said is not None and said[0] > indent:
            raise self.wrong("stands deeper than its mapping")
        return found

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        found = []
        while (said := self.peek()) is not None and said[0] == indent and (said[1] == "-" or said[1].startswith("- ")):
            rest = said[1][1:].lstrip()
            if rest.startswith("- ") or _KEY.match(rest):
                # What follows the dash is the first line of a block of its own, as deep as it stands.
                line = self.lines[self.at]
                self.lines[self.at] = line.replace("-", " ", 1)
                found.append(self.block(indent, depth + 1))
            else:
                found.append(self._value(rest, indent, depth))
        return found

    def _value(self, text: str, indent: int, depth: int, lists_at: int | None = None) -> object:
        """Return the value that begins on this line, and go on to the line behind it."""
        line = self.at
        if text[:1] in ("|", ">"):
            self.at += 1
            return self._literal(indent, folded=text[0] == ">")
        if text[:1] and text[0] in _OPENING:
            text = self._joined(text)
            value, end = self._flow(text, 0, line, depth)
            if text[end:].strip():
                raise self.wrong("has something behind its brackets", line)
            return value
        self.at += 1
        if text:
            return self._scalar(text, line)
        said = self.peek()
        is_list = said is not None and said[0] == lists_at and (said[1] == "-" or said[1].startswith("- "))
        return self.block(indent - is_list, depth + 1)

    def _literal(self, indent: int, *, folded: bool) -> str:
        """Return the text of a block scalar: the lines that stand deeper."""
        taken = []
        while self.at < len(self.lines):
            raw = self.lines[self.at]
            if raw.strip() and len(raw) - len(raw.lstrip()) <= indent:
                break
            taken.append(raw.strip())
            self.at += 1
        return (" " if folded else "\n").join(taken).strip()

    def _joined(self, text: str) -> str:
        """Return a value in brackets, which may go on over lines, as one line."""
        start, parts, open_ = self.at, [text], _open_brackets(text)
        self.at += 1
        while open_ > 0:
            if self.at >= len(self.lines):
                raise self.wrong("opens brackets that are not closed", start)
            parts.append(_without_comment(self.lines[self.at]).strip())
            open_ += _open_brackets(parts[-1])
            self.at += 1
        return " ".join(parts)

    def _flow(self, text: str, at: int, line: int, depth: int) -> tuple[Any, int]:
        """Return the value in brackets that begins there, or the scalar up to a comma, and where it ends."""
        if depth > _MOST_DEPTH:
            raise self.wrong("is nested too deeply", line)
        at = _skip(text, at)
        if text[at : at + 1] not in ("[", "{"):
            end = _end_of_scalar(text, at)
            return self._scalar(text[at:end].strip(), line), end
        close = _CLOSING[_OPENING.index(text[at])]
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        at = _skip(text, at + 1)
        while text[at : at + 1] != close:
            key = _KEY.match(text, at) if close == "}" else None
            if close == "}" and key is None:
                raise self.wrong("has something in braces that is no 'key: value'", line)
            value, at = self._flow(text, at if key is None else key.end(), line, depth + 1)
            if key is None:
                items.append(value)
            elif pairs.setdefault(_plain(key[1].strip()), value) is not value:
                raise self.wrong(f"gives {quoted(key[1])} twice", line)
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
            elif text[at : at + 1] != close:
                raise self.wrong("has brackets that do not match", line)
        return (pairs if close == "}" else items), at + 1

    def _scalar(self, text: str, line: int | None = None) -> object:
        first = text[:1]
        if first in ('"', "'"):
            if len(text) < 2 or text[-1] != first:
                raise self.wrong("has a quotation that does not end on its line", line)
            return _plain(text)
        if first in _NOT_READ:
            raise self.wrong(f"has {_NOT_READ[first]}, which is not read; write the value itself", line)
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text) and any(each.isdigit() for each in text):
            return float(text.replace("_", ""))
        return text


def _plain(text: str) -> str:
    """Return a key or scalar without its quotation marks."""
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text.startswith('"'):
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text[1:-1])
    return text


def _without_comment(line: str) -> str:
    """Return a line without its comment: a ``#`` behind a blank that stands in no quotation."""
    if "#" not in line:
        return line.rstrip()
    quote = ""
    for place, each in enumerate(line):
        before = line[place - 1] if place else " "
        if quote:
            quote = "" if each == quote and (quote == "'" or before != "\\") else quote
        elif each in "\"'" and (before.isspace() or before in "[{,"):
            quote = each
        elif each == "#" and before.isspace():
            return line[:place].rstrip()
    return line.rstrip()


def _open_brackets(text: str) -> int:
    """Return how many more brackets open than close, those in quotations aside."""
    # A quotation that is not closed yet runs to the end.
    bare = re.sub(r""""(?:[^"\\]|\\.)*+(?:"|\Z)|(?<![\w])'(?:[^']|'')*'""", "", text)
    return sum(map(bare.count, _OPENING)) - sum(map(bare.count, _CLOSING))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _end_of_scalar(text: str, at: int) -> int:
    """Return where a scalar within brackets ends."""
    if text[at : at + 1] in ('"', "'"):
        quote, end = text[at], at + 1
        while end < len(text) and (text[end] != quote or text[end - 1] == "\\"):
            end += 1
        return end + 1
    while at < len(text) and text[at] not in ",]}":
        at += 1
    return at
