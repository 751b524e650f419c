"""A pipeline's layout as a string: what each virtual stage holds, in the notation of Megatron-LM.

``E`` is the embedding, ``t`` a layer, ``m`` an MTP layer, ``L`` the LM head with the loss, and ``|`` stands between two
virtual stages, which are in model order. ``t*3`` is ``ttt``, ``(tt|)*2`` is ``tt|tt|``; commas and blanks say nothing.
``Et*4|(t*4|)*14tmL`` are 61 layers on 16 virtual stages, the last of which has one layer and an MTP layer.

Source: Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py (parse_str_to_list: groups are not
nested, and both kinds of repetition are unrolled once; validate_layer_layout: what a layout must keep).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from traincast.errors import ConfigError, InfeasibleError
from traincast.units import brief, counted

LETTERS = {"E": "the embedding", "t": "a layer", "m": "an MTP layer", "L": "the LM head with the loss"}
"""What a layout is made of, in addition to the ``|`` between virtual stages."""

_FIELD = "pipeline_layout"
_ONE = r"[EtmL|](?:\*\d{1,9})?"
_GRAMMAR = re.compile(rf"(?:{_ONE}|\((?:{_ONE})+\)\*\d{{1,9}})+")
_GROUP, _LETTER = re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"([EtmL|])\*(\d+)")
_COSMETIC = re.compile(r"[\s,'\"]")
_LONGEST = 1 << 16


class PipelineLayout(Struct, frozen=True):
    """What each virtual stage of a pipeline holds."""

    stages: tuple[str, ...]
    """The letters of each virtual stage, in model order; of an empty one none."""

    @property
    def layers_Q(self) -> tuple[int, ...]:
        """Layers of each virtual stage, without MTP layers."""
        return tuple(stage.count("t") for stage in self.stages)

    @property
    def mtp_layers(self) -> int:
        """MTP layers of all virtual stages."""
        return sum(stage.count("m") for stage in self.stages)

    @property
    def mtp_stage(self) -> int | None:
        """The virtual stage of the MTP layers; None where there are none."""
        return next((index for index, stage in enumerate(self.stages) if "m" in stage), None)

    def __str__(self) -> str:
        """Write it with its repetitions; `parse_layout` reads it back."""
        *before, last = self.stages
        ended = ((f"{_letters(stage)}|", sum(1 for _ in same)) for stage, same in groupby(before))
        written = "".join(_repeated(stage, f"({stage})", count) for stage, count in ended)
        return written + _letters(last)


def _letters(stage: str) -> str:
    return "".join(_repeated(letter, letter, sum(1 for _ in same)) for letter, same in groupby(stage))


def _repeated(piece: str, written: str, count: int) -> str:
    """Write a piece so many times, as a repetition where that is shorter."""
    return min(piece * count, f"{written}*{count}", key=len)


def layout_of(layers_Q: Sequence[int], mtp_layers: int = 0, mtp_stage: int | None = None) -> PipelineLayout:
    """Return the layout of some layers for each virtual stage, with the embedding on the first, the loss on the last.

    The MTP layers are on one virtual stage, on the last one unless another is named.
    """
    stages = ["t" * layers for layers in layers_Q]
    stages[-1 if mtp_stage is None else mtp_stage] += "m" * mtp_layers
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1] if len(stages) > 1 else f'E{stages[0]}'}L"
    return PipelineLayout(tuple(stages))


def parse_layout(text: str) -> PipelineLayout:
    """Read a layout; whether it fits a model and a pipeline, `check_layout` says.

    Raises
    ------
    ConfigError
        If it is not of the grammar, or would be written out to more than 65,536 letters.
    """
    plain = _COSMETIC.sub("", text)
    if _GRAMMAR.fullmatch(plain) is None:
        raise ConfigError(f"is {brief(repr(text))}; {_hint(plain)}", _FIELD)
    for repetition in (_GROUP, _LETTER):
        length = len(plain) + sum(len(each[1]) * int(each[2]) for each in repetition.finditer(plain))
        if length > _LONGEST:
            raise ConfigError(f"is {brief(repr(text))}, which stands for more than {_LONGEST} letters", _FIELD)
        plain = repetition.sub(lambda each: each[1] * int(each[2]), plain)
    return PipelineLayout(tuple(plain.split("|")))


def _hint(plain: str) -> str:
    """Say what is wrong with the text of a layout, and how one is written."""
    written = "write it like Et*3|(tt|)*29m|L, of E (embedding), t (layer), m (MTP layer), L (loss), | and *N"
    unknown = next((letter for letter in plain if letter not in "EtmL|()*0123456789"), None)
    if unknown is not None:
        return f"{unknown!r} is not a letter of a layout; {written}"
    if re.search(r"\([^)]*\(", plain):
        return f"groups cannot be nested; {written}"
    if re.search(r"\)(?!\*\d)", plain):
        return f"a group needs its number, as in (tt|)*29; {written}"
    return written


def check_layout(layout: PipelineLayout, *, name: str, layers: int, mtp_layers: int, pp: int, vpp: int | None) -> None:
    """Refuse a layout that does not fit a model or a pipeline, as Megatron-LM does, and say by how much.

    Parameters
    ----------
    layout : PipelineLayout
        The layout.
    name : str
        Name of the model.
    layers, mtp_layers : int
        What the model has.
    pp, vpp : int
        Pipeline stages, and virtual stages of each where they were given.

    Raises
    ------
    ConfigError
        If its parts are not in the order of the model.
    InfeasibleError
        If it has other numbers of layers or stages.
    """
    wrong = next(_misplaced(layout, pp), None)
    if wrong is not None:
        raise ConfigError(f"is {brief(str(layout))}; {wrong}", _FIELD)
    count = len(layout.stages)
    if count % pp:
        raise InfeasibleError(
            f"{_FIELD} {brief(str(layout))} has {counted(count, 'virtual stage')}, which pp {pp} does not divide: "
            f"{pp - count % pp} too few{f' or {count % pp} too many' if count > pp else ''}"
        )
    if vpp is not None and count != pp * vpp:
        raise InfeasibleError(
            f"{_FIELD} {brief(str(layout))} has {counted(count, 'virtual stage')}, so that vpp is {count // pp}, not "
            f"{vpp}; leave vpp out"
        )
    for kind, placed, has in (("layer", sum(layout.layers_Q), layers), ("MTP layer", layout.mtp_layers, mtp_layers)):
        if placed != has:
            raise InfeasibleError(
                f"{_FIELD} {brief(str(layout))} places {counted(placed, kind)}, but {name} has {has}: "
                f"{abs(has - placed)} too {'few' if placed < has else 'many'}"
            )


def _misplaced(layout: PipelineLayout, pp: int) -> Iterator[str]:
    """Yield what of a layout is in a place where it cannot be."""
    written = "".join(layout.stages)
    for letter, place, stage in (("E", "first", layout.stages[0][:1]), ("L", "last", layout.stages[-1][-1:])):
        if written.count(letter) != 1:
            yield f"it has {letter} ({LETTERS[letter]}) {written.count(letter)} times, not once"
        elif stage != letter:
            yield f"{letter} ({LETTERS[letter]}) must be the {place} of the {place} virtual stage"
    if "mt" in written:
        yield "layers (t) must come before MTP layers (m)"
    holders = [index for index, stage in enumerate(layout.stages) if "m" in stage]
    if len(holders) > 1:
        yield f"MTP layers (m) must be on one virtual stage, not on {len(holders)}"
    if holders and holders[0] < len(layout.stages) - pp:
        yield f"MTP layers (m) must be on the last virtual stage of their rank, one of the last {pp}"
