"""What the name of a trace file says of its run.

Source: fwyc0573/Megatron-LM, the tracer's output paths, such as
``wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer_rank0_20240923205004.txt`` and
``pp1_tp1_exp4_expn8_dp16_nl8_hs2048_sl2048/wd16_tp1_pp1_exp4_expNum8_l8_bs1_rank3_20250301101500.txt``.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_MARKS = {
    "wd": "world",
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "exp": "ep",
    "ep": "ep",
    "expNum": "experts",
    "expn": "experts",
    "numl": "layers",
    "nl": "layers",
    "l": "layers",
    "bs": "micro_batch",
    "hs": "hidden",
    "sl": "sequence",
    "rank": "rank",
    "stage": "stage",
}
_WORD = re.compile(r"([A-Za-z]+)([0-9]{1,9})", re.ASCII)
_STAMP = re.compile(r"20[0-9]{12}", re.ASCII)
_OF_ONE_RANK = re.compile(r"20[0-9]{12}|(?:rank|stage)[0-9]{1,9}", re.ASCII)
_OF_THE_FILE = ("rank", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """Facts of a file's name and, where that is silent, of its folder's; None where neither says."""

    prefix: str
    """The name without what differs between the ranks of a run."""
    world: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    experts: int | None = None
    layers: int | None = None
    micro_batch: int | None = None
    hidden: int | None = None
    sequence: int | None = None
    rank: int | None = None
    stage: int | None = None
    stamp: datetime | None = None
    """When the trace was written."""


def parse_name(path: Path) -> FileName:
    """Read a file's name; nothing in a name is an error.

    Parameters
    ----------
    path : Path
        The file; the name of its folder completes it, save rank, stage and stamp.

    Returns
    -------
    FileName
    """
    facts = {key: value for key, value in _facts(path.parent.name).items() if key not in _OF_THE_FILE}
    facts.update(_facts(path.stem))
    words = path.stem.split("_")
    stamp = next((found for word in words if (found := _stamp(word)) is not None), None)
    prefix = "_".join(word for word in words if _OF_ONE_RANK.fullmatch(word) is None)
    return FileName(prefix=prefix, stamp=stamp, **facts)


def _facts(name: str) -> dict[str, int]:
    """Return the numbers of a name by the fields of `FileName`; the first of a kind counts."""
    facts: dict[str, int] = {}
    for word in name.split("_"):
        match = _WORD.fullmatch(word)
        # a degree or size of zero says nothing; ranks and stages count from zero
        if match is not None and match[1] in _MARKS and (int(match[2]) or match[1] in {"rank", "stage"}):
            facts.setdefault(_MARKS[match[1]], int(match[2]))
    return facts


def _stamp(word: str) -> datetime | None:
    if _STAMP.fullmatch(word) is None:
        return None
    try:
        return datetime.strptime(word, "%Y%m%d%H%M%S")  # without a zone: only gaps count
    except ValueError:
        return None
