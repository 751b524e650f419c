"""Read the first line of an AICB file: a policy, then an unordered bag of keys and values."""

from collections.abc import Callable
from typing import Any

from traincast.diagnostics import Remarks
from traincast.errors import FormatError
from traincast.formats import values
from traincast.formats.aicb.rows import Header, size_bytes
from traincast.formats.values import number, shown
from traincast.units import counted

POLICIES = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
    "HYBRID_TRANSFORMER",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "DATA",
    "MODEL",
    "DISTRIBUTED_INFERENCE",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "MICRO",
)
"""Every policy that SimAI knows. Source: SimAI, ``astra-sim/workload/Workload.cc``."""


def _count(text: str) -> int:
    return values.whole(text, least=0)


def _mode(text: str) -> bool:
    value = _count(text)
    if value > 1:
        raise ValueError(f"{shown(text)} is neither 0 (training) nor 1 (inference)")
    return value == 1


# Key in lower case: field of Header (None: kept in `extra`) and reader of its value.
_SINGLE: dict[str, tuple[str | None, Callable[[str], Any]]] = {
    "model_parallel_npu_group": ("tp", _count),
    "ep": ("ep", _count),
    "expert_parallel_npu_group": ("ep", _count),
    "pp": ("pp", _count),
    "vpp": ("vpp", _count),
    "ga": ("ga", _count),
    "all_gpus": ("all_gpus", _count),
    "pp_comm": ("pp_message_bytes", size_bytes),
    "mode": ("inference", _mode),
    "dlrm_last_bottom_layer": (None, _count),
}
_LONGEST_HEADER = 1 << 20
_COUNTED = ("checkpoints", "checkpoint_initiates")


def parse_header(path: str, line: int, text: str, remarks: Remarks) -> Header:
    """Read the header line.

    Parameters
    ----------
    path : str
        File, for messages.
    line : int
        1-based line of the header.
    text : str
        The line. A colon after a key may be missing, attached or detached; keys may stand in
        any order; numbers may be written as floats.
    remarks : Remarks
        Takes what is unusual: unknown and repeated keys.

    Returns
    -------
    Header
        Keys that are absent are None.

    Raises
    ------
    FormatError
        For an unknown policy, a key without a proper value, a value without a key, and a key
        with two different values.

    Notes
    -----
    Source: AICB, ``workload_generator/SimAI_training_workload_generator.py`` and
    ``SimAI_inference_workload_generator.py`` (writers); SimAI, ``Workload.cc`` (reader).
    """
    if len(text) > _LONGEST_HEADER:
        raise FormatError(f"the header line has {len(text)} characters; this is no AICB file", path, line)
    words = text.replace(":", " : ").split()
    if words[0] not in POLICIES:
        raise FormatError(f"unknown policy {shown(words[0])}; known: {', '.join(POLICIES)}", path, line)
    return _HeaderReader(path, line, words, remarks).read()


class _HeaderReader:
    """A walk over the words of a header line; colons are words of their own."""

    def __init__(self, path: str, line: int, words: list[str], remarks: Remarks) -> None:
        self.path, self.line, self.words, self.remarks = path, line, words, remarks
        self.position = 1
        self.fields: dict[str, Any] = {}
        self.writer: dict[str, str] = {}
        self.keys: list[str] = []
        self.bare: list[str] = []
        self.extra: dict[str, str] = {}

    def read(self) -> Header:
        while self.position < len(self.words):
            key = self._key()
            name = key.lower()
            try:
                if name in _COUNTED:
                    self._store(name, key, self._counted())
                elif name in _SINGLE:
                    self._single(name, key)
                else:
                    self._unknown(key)
            except ValueError as problem:
                raise FormatError(f"header key {shown(key)}: {problem}", self.path, self.line) from None
        inference = self.fields.pop("inference", False) or self.words[0] == "DISTRIBUTED_INFERENCE"
        return Header(
            policy=self.words[0],
            inference=inference,
            keys=tuple(self.keys),
            bare_keys=tuple(self.bare),
            extra=self.extra,
            **self.fields,
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
        return word in _SINGLE or word in _COUNTED or ":" in self.words[self.position : self.position + 2]

    def _single(self, name: str, key: str) -> None:
        """Read a key that takes one value."""
        field, read = _SINGLE[name]
        word = self._word()
        value = read(word)
        if field is None:
            self._keep(key, word)
        else:
            self._store(field, key, value)

    def _counted(self) -> tuple[int, ...]:
        count = _count(self._word())
        if count > len(self.words) - self.position:
            raise ValueError(f"announces {counted(count, 'layer')} but the line ends before them")
        return tuple(_count(self._word()) for _ in range(count))

    def _unknown(self, key: str) -> None:
        """Keep a key that nobody knows, with one word or any number of numbers."""
        start = self.position
        while self.position < len(self.words) and not self._at_key():
            if self.position > start and not _is_number(self.words[self.position]):
                break
            self.position += 1
        value = " ".join(self.words[start : self.position])
        self._keep(key, value)
        text = f"header key {shown(key)} is unknown and left alone; its value is {shown(value)}"
        self.remarks.add("unknown-key", text, self.line)

    def _keep(self, key: str, value: str) -> None:
        if self.extra.get(key, value) != value:
            raise ValueError(f"is given twice, as {shown(self.extra[key])} and as {shown(value)}")
        self.extra[key] = value

    def _store(self, field: str, key: str, value: object) -> None:
        if field in self.writer:
            if self.fields.get(field, value) != value:
                earlier = f"{shown(self.writer[field])} as {self.fields[field]}"
                raise ValueError(f"is {value}, but the header already gives {earlier}")
            self.remarks.add("repeated-key", f"header key {shown(key)} is given twice, with one value", self.line)
        self.writer[field] = key
        self.fields[field] = value


def _is_number(word: str) -> bool:
    try:
        number(word)
    except ValueError:
        return False
    return True
