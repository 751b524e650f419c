"""Read the first line of an AICB file: a policy, then an unordered bag of keys and values.

A colon after a key may be missing, attached or detached, and numbers may be written as floats. Source: AICB,
``workload_generator/SimAI_training_workload_generator.py`` and ``SimAI_inference_workload_generator.py`` (writers);
SimAI, ``astra-sim/workload/Workload.cc`` (reader).
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from traincast.diagnostics import FileWarnings
from traincast.errors import FormatError
from traincast.formats.aicb.policies import LAST_BOTTOM, POLICIES, WITH_TABLES
from traincast.formats.values import number, shown, whole
from traincast.units import counted


class Header(Struct, frozen=True, kw_only=True):
    """The first line; None where it is silent."""

    policy: str
    tp: int | None = None
    ep: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ga: int | None = None
    """Microbatches per step."""
    all_gpus: int | None = None
    pp_message_bytes: int | None = None
    """``pp_comm``: bytes of one activation message between pipeline stages."""
    checkpoints: tuple[int, ...] = ()
    """Rows (0-based) that are activation checkpoints."""
    checkpoint_initiates: tuple[int, ...] = ()
    """Rows (0-based) at which recomputation starts in the backward pass."""
    inference: bool = False
    """The file has a forward pass only: ``mode: 1`` or the policy ``DISTRIBUTED_INFERENCE``."""
    keys: tuple[str, ...] = ()
    """In the order of the file, without their colons."""
    bare_keys: tuple[str, ...] = ()
    """Those of them that have no colon."""
    extra: dict[str, str] = field(default_factory=dict)
    """Unknown keys, and known ones that nothing here uses, with their values as written."""


def _whole(text: str) -> int:
    return whole(text, least=0)


def size_bytes(text: str) -> int:
    """Read a size in bytes; a fraction, which a division by TP can leave, is rounded."""
    return whole(text, "bytes", rounded=True)


def policy(text: str) -> str:
    """Read a policy, or raise ValueError with the known ones."""
    if text not in POLICIES:
        raise ValueError(f"unknown policy {shown(text)}; known: {', '.join(POLICIES)}")
    return text


def _mode(text: str) -> bool:
    value = _whole(text)
    if value > 1:
        raise ValueError(f"{shown(text)} is neither 0 (training) nor 1 (inference)")
    return value == 1


# Key in lower case: field of Header (None: kept in `extra`) and reader of its value.
_SINGLE: dict[str, tuple[str | None, Callable[[str], Any]]] = {
    "model_parallel_npu_group": ("tp", _whole),
    "expert_parallel_npu_group": ("ep", _whole),
    **{name: (name, _whole) for name in ("ep", "pp", "vpp", "ga", "all_gpus")},
    "pp_comm": ("pp_message_bytes", size_bytes),
    "mode": ("inference", _mode),
    LAST_BOTTOM.lower(): (None, _whole),
}
COUNTED = ("checkpoints", "checkpoint_initiates")
_LONGEST_HEADER = 1 << 20


class HeaderReader:
    """A walk over the words of a header line; colons are words of their own."""

    def __init__(self, path: str, line: int, text: str, warnings: FileWarnings) -> None:
        if len(text) > _LONGEST_HEADER:
            raise FormatError(f"the header line has {len(text)} characters; this is not an AICB file", path, line)
        self.path, self.line, self.warnings = path, line, warnings
        self.words = text.replace(":", " : ").split()
        self.position = 1
        self.fields: dict[str, Any] = {}
        self.writer: dict[str, str] = {}
        self.keys: list[str] = []
        self.bare: list[str] = []
        self.extra: dict[str, str] = {}

    def read(self) -> Header:
        """Return the header; raise FormatError for what belongs to no key, has no value, or is said twice."""
        try:
            first = policy(self.words[0])
        except ValueError as problem:
            raise FormatError(str(problem), self.path, self.line) from None
        if first in WITH_TABLES and self.words[1:] and _is_number(self.words[1]):
            # ASTRA-sim's own files have the number alone.
            self._keep(LAST_BOTTOM, self.words[1])
            self.position = 2
        while self.position < len(self.words):
            key = self._key()
            start = self.position
            try:
                target, value = self._value(key.lower())
                said = " ".join(self.words[start : self.position])
                if target is None:
                    self._keep(key, said)
                else:
                    self._store(target, key, value)
            except ValueError as problem:
                raise FormatError(f"header key {shown(key)}: {problem}", self.path, self.line) from None
            if target is None and key.lower() not in _SINGLE:
                text = f"header key {shown(key)} is unknown and left alone; its value is {shown(said)}"
                self.warnings.add("unknown-key", text, self.line)
        inference = self.fields.pop("inference", False) or first == "DISTRIBUTED_INFERENCE"
        keys, bare_keys = tuple(self.keys), tuple(self.bare)
        return Header(
            policy=first, inference=inference, keys=keys, bare_keys=bare_keys, extra=self.extra, **self.fields
        )

    def _key(self) -> str:
        key = self.words[self.position]
        if key == ":" or _is_number(key):
            after = f"after {shown(self.keys[-1])}" if self.keys else "after the policy"
            raise FormatError(f"header: {shown(key)} {after} belongs to no key", self.path, self.line)
        self.position += 1
        if self.words[self.position : self.position + 1] == [":"]:
            self.position += 1
        else:
            self.bare.append(key)
        self.keys.append(key)
        return key

    def _word(self) -> str:
        if self.position == len(self.words) or self._at_key():
            raise ValueError("has no value")
        self.position += 1
        return self.words[self.position - 1]

    def _at_key(self) -> bool:
        """Tell whether a key starts here: a known one, or any word before a colon."""
        word = self.words[self.position].lower()
        return word in _SINGLE or word in COUNTED or ":" in self.words[self.position : self.position + 2]

    def _value(self, name: str) -> tuple[str | None, object]:
        """Read the value of a key; one that nobody knows has a word, or any number of numbers, and no field."""
        if name in COUNTED:
            count = _whole(self._word())
            if count > len(self.words) - self.position:
                raise ValueError(f"announces {counted(count, 'layer')} but the line ends before them")
            return name, tuple(_whole(self._word()) for _ in range(count))
        if name in _SINGLE:
            target, read = _SINGLE[name]
            return target, read(self._word())
        start = self.position
        while self.position < len(self.words) and not self._at_key():
            if self.position > start and not _is_number(self.words[self.position]):
                break
            self.position += 1
        return None, None

    def _keep(self, key: str, value: str) -> None:
        if self.extra.get(key, value) != value:
            raise ValueError(f"is given twice, as {shown(self.extra[key])} and as {shown(value)}")
        self.extra[key] = value

    def _store(self, target: str, key: str, value: object) -> None:
        if target in self.writer:
            if self.fields.get(target, value) != value:
                earlier = f"{shown(self.writer[target])} as {self.fields[target]}"
                raise ValueError(f"is {value}, but the header already gives {earlier}")
            self.warnings.add("repeated-key", f"header key {shown(key)} is given twice, with one value", self.line)
        self.writer[target] = key
        self.fields[target] = value


def _is_number(word: str) -> bool:
    try:
        number(word)
    except ValueError:
        return False
    return True
