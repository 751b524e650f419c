"""Hybrids in Megatron-LM's flags: layers of one block each, by a pattern of letters or by shares.

``M-M*-|M-ME/*E`` has nine layers on two virtual stages, which ``|`` separates, and behind ``/`` an MTP layer of two
blocks; each further MTP layer has a ``/`` of its own. Shares of attention and of MLP layers are spread evenly.

Sources: Megatron-LM, megatron/core/models/hybrid/hybrid_layer_allocation.py (before core 0.17
megatron/core/ssm/mamba_hybrid_layer_allocation.py); megatron/training/arguments.py (validate_args: what a pattern
excludes).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.dialects.flags import Pasted
from traincast.model.table import LAYER_LETTERS
from traincast.units import counted, quoted

_PATTERN, _MTP_PATTERN = "hybrid-layer-pattern", "mtp-hybrid-override-pattern"
_SHARES = ("hybrid-attention-ratio", "hybrid-mlp-ratio")
_SCRIPTS, _SPECS = ("pretrain_mamba.py", "pretrain_hybrid.py"), ("mamba_layer_specs", "hybrid_layer_specs")
_EXCLUDED = (
    *("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"),
    *("pipeline-model-parallel-layout", "account-for-embedding-in-pipeline-split"),
    "account-for-loss-in-pipeline-split",
)
_EXCLUDED_BY_STAGES = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")


class Hybrid(Struct, frozen=True):
    """The layers of a hybrid."""

    letters: str
    """One for each layer."""
    stages: tuple[int, ...] | None
    """Layers of each virtual stage, where the pattern separates some."""
    mtp_letters: str = ""
    """Blocks of an MTP layer."""
    mtp_layers: int = 0

    @property
    def has_latent_attention(self) -> bool:
        """Whether some of its layers have latent attention."""
        return not {"+", "D"}.isdisjoint(self.letters + self.mtp_letters)


def hybrid_of(pasted: Pasted, script: str | None, notes: list[Note]) -> Hybrid | None:
    """Return the hybrid that the flags or the training script mean; None for a model whose layers are as usual.

    Raises
    ------
    ConfigError
        If the pattern or the shares cannot be, its MTP layers differ or have no pattern, or a flag excludes it.
    """
    if _PATTERN in pasted:
        return _of_pattern(pasted)
    shares = [pasted.number(flag, "share") if flag in pasted else 0.0 for flag in _SHARES]
    called = (script or "").rpartition("/")[2] in _SCRIPTS or any(each in pasted.words("spec") for each in _SPECS)
    if "num-layers" not in pasted or not (any(shares) or called or pasted.is_on("is-hybrid-model")):
        return None
    if sum(shares) > 1:
        raise pasted.wrong(_SHARES[0], f"and --{_SHARES[1]} are {shares[0]:g} and {shares[1]:g}, more than 1 together")
    letters = _spread(pasted.count("num-layers", 1), *shares)
    if not any(shares):
        text = f"--{_PATTERN} is not given: {counted(len(letters), 'layer')} of Mamba-2 and no other"
        notes.append(Note("assumed-pattern", text))
    return _with_mtp(pasted, Hybrid(letters, None), [])


def _of_pattern(pasted: Pasted) -> Hybrid:
    text = pasted.text(_PATTERN)
    main, *further = text.split("/")
    stages = main.split("|")
    _check_letters(pasted, _PATTERN, stages, further)
    for flag in (*_EXCLUDED, *(_EXCLUDED_BY_STAGES if len(stages) > 1 else ())):
        if flag in pasted:
            raise pasted.wrong(
                flag, f"cannot be combined with --{_PATTERN}; write the stages there, with | between them"
            )
    found = Hybrid("".join(stages), tuple(map(len, stages)) if len(stages) > 1 else None)
    return _with_mtp(pasted, found, [letters for letters in further if letters])


def _check_letters(pasted: Pasted, flag: str, layers: Sequence[str], further: Sequence[str] = ()) -> None:
    """Refuse a pattern without layers, or with letters that stand for none."""
    strange = sorted({*"".join((*layers, *further))} - {*LAYER_LETTERS})
    if strange or not any(layers):
        known = ", ".join(f"{letter} ({name})" for letter, name in LAYER_LETTERS.items())
        what = f"has {quoted(strange[0])}" if strange else f"is {quoted(pasted.text(flag))}"
        raise pasted.wrong(flag, f"{what}; a pattern is made of {known}, | between stages, and / before MTP layers")


def _with_mtp(pasted: Pasted, found: Hybrid, further: list[str]) -> Hybrid:
    """Return a hybrid with its MTP layers: those of its pattern, else as many as given, of a pattern of their own."""
    count = pasted.count("mtp-num-layers", usual=0)
    if count and not further:
        if _MTP_PATTERN not in pasted:
            raise pasted.wrong(
                "mtp-num-layers", f"needs the blocks of these layers; write them behind / in --{_PATTERN}"
            )
        further = [pasted.text(_MTP_PATTERN)] * count
        _check_letters(pasted, _MTP_PATTERN, further)
    if len(set(further)) > 1:
        raise pasted.wrong(_PATTERN, f"has different MTP layers, {further[0]} and {further[-1]}; they must be alike")
    return Hybrid(found.letters, found.stages, further[0] if further else "", len(further))


def _spread(layers: int, attention: float, mlp: float) -> str:
    """Return the letters of so many layers with these shares of attention and of MLP layers, spread evenly."""
    found = ["M"] * layers
    wanted = round(layers * attention)
    for place in _evenly(range(layers), (layers - wanted) / (wanted + 1)):
        found[place] = "*"
    mamba = [place for place, letter in enumerate(found) if letter == "M"]
    wanted = round(layers * mlp)
    for place in _evenly(mamba, (len(mamba) - wanted) / wanted) if wanted else ():
        found[place] = "-"
    return "".join(found)


def _evenly(places: Iterable[int], gap: float) -> list[int]:
    """Return places with so many others between them on average, and before the first."""
    chosen, left = [], gap
    for place in places:
        if left < 0.5:
            chosen.append(place)
        left += gap if left < 0.5 else -1
    return chosen
