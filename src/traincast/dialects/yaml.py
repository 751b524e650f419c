"""The YAML of configuration files: PyYAML's safe loader, the line of what is wrong, and bounds on what is read.

Scalars are read as the loaders of the frameworks read them: by YAML 1.1 (``off`` is a boolean, ``010`` is eight,
``08`` a text), but that numbers with an exponent need neither dot nor sign and dates stay texts, as OmegaConf has it.
Keys are always texts; a key that is given twice is refused, and every tag that is not YAML's own.
Source: YAML 1.1 (yaml.org/type); PyYAML, lib/yaml/resolver.py, which Accelerate reads with; omry/omegaconf,
omegaconf/_utils.py (get_yaml_loader), which NeMo and Megatron-Bridge read with.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from msgspec import Struct, field
from yaml.constructor import SafeConstructor
from yaml.reader import Reader

from traincast.errors import FormatError
from traincast.files import read_text
from traincast.units import quoted

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MOST_DEPTH = 32
_MOST_VALUES = 100_000
"""Values of a file with what its aliases and merge keys stand for."""
_TOO_MANY = f"is one of more than {_MOST_VALUES:,} values, with those that aliases stand for"
_OWN_TAG = "tag:yaml.org,2002:"
_TEXTS = ("str", "timestamp", "value")
"""Kinds of scalars that stay texts: dates, and the single ``=`` that YAML 1.1 gives a meaning nobody uses."""
_SCALARS = ("null", "bool", "int", "float", *_TEXTS)
_FURTHER_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)")
"""Numbers that PyYAML takes for texts and OmegaConf does not."""


def read_yaml(path: Path) -> object:
    """Return what a YAML file holds (errors as `traincast.files.read_text` and `parse_yaml`)."""
    return parse_yaml(read_text(path, encoding="utf-8-sig"), str(path))


def parse_yaml(text: str, shown: str) -> object:
    """Return what a YAML text holds: mappings, lists, texts, numbers, booleans and None; `shown` is its file.

    Raises
    ------
    FormatError
        With the line of what is not YAML or not read, of a key that is given twice, or of what is nested too deeply
        or too much.
    """
    reader = _Reader(text, shown)
    node = reader.compose()
    return None if node is None else reader.value(node, 0)


class _Reader(Struct):
    """The values of a file's nodes, each counted as often as an alias repeats it."""

    text: str
    shown: str
    count: int = 0
    scalars: SafeConstructor = field(default_factory=SafeConstructor)

    def compose(self) -> yaml.Node | None:
        """Return the node that the file is; None of an empty one."""
        strange = Reader.NON_PRINTABLE.search(self.text)
        if strange is not None:
            line = self.text.count("\n", 0, strange.start())
            raise self._wrong("is not YAML: it has a character that cannot be printed", line)
        try:
            self._check_size()
            return yaml.compose(self.text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from None

    def _check_size(self) -> None:
        """Refuse what has too many values or is too deep for the composer, which goes down by calling itself."""
        depth = count = 0
        for event in yaml.parse(self.text, Loader=_LOADER):
            line = 0 if event.start_mark is None else event.start_mark.line
            count += isinstance(event, yaml.NodeEvent)
            if count > _MOST_VALUES:
                raise self._wrong(_TOO_MANY, line)
            if isinstance(event, yaml.CollectionStartEvent):
                if depth > _MOST_DEPTH:
                    raise self._wrong("is nested too deeply", line)
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> FormatError:
        """Return what PyYAML says in one line, at the line that a person would mend."""
        context, problem = error.context_mark, error.problem_mark
        line = 0 if problem is None else problem.line
        start = line if context is None else context.line
        begun = f"{error.context}: " if error.context else ""
        if (error.context or "").startswith("while scanning") or line >= len(self.text.splitlines()):
            # What is not closed is found at the end of the file only.
            line = start
        elif error.context and start != line:
            begun = f"{error.context} that begins in line {start + 1}: "
        return self._wrong(f"is not YAML: {begun}{error.problem}", line)

    def value(self, node: yaml.Node, depth: int) -> object:
        """Return what a node holds, which stands so deep."""
        line, self.count = node.start_mark.line, self.count + 1
        if self.count > _MOST_VALUES:
            raise self._wrong(_TOO_MANY, line)
        if depth > _MOST_DEPTH and not isinstance(node, yaml.ScalarNode):
            raise self._wrong("is nested too deeply, or within itself", line)
        kind = node.tag.removeprefix(_OWN_TAG)
        if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            return self._scalar(node, kind)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.value(each, depth + 1) for each in node.value]
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, depth)
        raise self._wrong(f"has the tag {quoted(node.tag)}, which is not read; write the value itself", line)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, object]:
        merged: dict[str, object] = {}
        found: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._wrong("has a list or mapping as a key; only names are read", key.start_mark.line)
            if key.tag == f"{_OWN_TAG}merge":
                for each in self._merged(value, depth):
                    merged |= each
            elif key.value in found:
                raise self._wrong(f"gives {quoted(key.value)} for the second time", key.start_mark.line)
            else:
                found[key.value] = self.value(value, depth + 1)
        return merged | found

    def _merged(self, node: yaml.Node, depth: int) -> Iterator[dict[str, object]]:
        """Yield the mappings that a merge key brings in, the first of a list, which counts most, last.

        Source: yaml.org/type/merge.
        """
        for each in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            found = self.value(each, depth + 1)
            if not isinstance(found, dict):
                raise self._wrong("is merged (<<), but is not a mapping", each.start_mark.line)
            yield found

    def _scalar(self, node: yaml.ScalarNode, kind: str) -> object:
        text: str = node.value
        if node.style in ("|", ">"):
            # As a shell's words, which have no end of line behind them.
            return text.strip()
        further = kind == "str" and not node.style and _FURTHER_FLOAT.fullmatch(text)
        if kind in _TEXTS and not further:
            return text
        try:
            found = float(text.replace("_", "")) if further else self.scalars.construct_object(node)
        except (ValueError, KeyError):
            return text
        return text if isinstance(found, float) and not math.isfinite(found) else found

    def _wrong(self, what: str, line: int) -> FormatError:
        return FormatError(
            f"{quoted(''.join(self.text.splitlines()[line : line + 1]).strip()[:60])} {what}", self.shown, line + 1
        )
