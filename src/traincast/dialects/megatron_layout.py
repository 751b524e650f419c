"""Two small notations of Megatron-LM's flags: which layers have experts, and the pipeline's layout.

Source: Megatron-LM, megatron/training/arguments.py (moe_freq_type) and
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re

from traincast.errors import ConfigError
from traincast.units import count_of, quoted

_FREQUENCY = re.compile(r"\(\[([01](?:,[01])*)\]\*(\d{1,9})\)|\[([01](?:,[01])*)\](?:\*(\d{1,9}))?")
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,9})|([A-Za-z|])\*(\d{1,9})")
_LONGEST = 1 << 16


def moe_layers(text: str, layers: int) -> tuple[int, int]:
    """Read ``2`` or ``([0]*3+[1]*58)`` as plain layers at the start, and one layer in how many has experts.

    Parameters
    ----------
    text : str
        Value of ``--moe-layer-freq``.
    layers : int
        Layers of the model.

    Returns
    -------
    tuple of (int, int)

    Raises
    ------
    ConfigError
        If it is neither, does not cover the layers, or is a pattern that cannot be described so.
    """
    flag = "--moe-layer-freq"
    bare = re.sub(r"[\s'\"]", "", text)
    if (period := count_of(bare)) is not None:
        return 0, period
    if bare.startswith("([") and bare.endswith(")") and _FREQUENCY.sub("", bare[1:-1]).strip("+") == "":
        bare = bare[1:-1]
    if not bare or _FREQUENCY.sub("", bare).strip("+*0123456789") not in ("", "()"):
        raise ConfigError(f"is {quoted(text)}; write a number, or a list like ([0]*3+[1]*58)", flag)
    pattern: list[int] = []
    for grouped, group_times, single, times in _FREQUENCY.findall(bare):
        numbers = [int(each) for each in (grouped or single).split(",")]
        pattern += numbers * min(int(group_times or times or 1), _LONGEST)
    if len(pattern) != layers or 1 not in pattern:
        raise ConfigError(f"covers {len(pattern)} layers, {sum(pattern)} with experts; the model has {layers}", flag)
    first = pattern.index(1)
    rest = pattern[first:]
    period = next((gap for gap in range(1, len(rest)) if rest[gap]), len(rest))
    # One in `period`, counted from the end of each period: the first of them comes after period - 1 plain ones.
    dense = first - (period - 1)
    regular = all((index - dense) % period == period - 1 for index, each in enumerate(pattern) if each)
    if dense < 0 or not regular or sum(pattern) != (layers - dense) // period:
        raise ConfigError(f"is {quoted(text)}, a pattern that is not one layer in so many after some plain ones", flag)
    return dense, period


def layers_of_layout(text: str) -> tuple[int, ...]:
    """Read ``Et*3|(tt|)*29,m|L`` as layers per virtual stage, in model order.

    Parameters
    ----------
    text : str
        Value of ``--pipeline-model-parallel-layout``: E embedding, t layer, m multi-token layer, L loss.

    Returns
    -------
    tuple of int

    Raises
    ------
    ConfigError
        If it has other letters or does not end.
    """
    flag = "--pipeline-model-parallel-layout"
    plain = re.sub(r"[\s,'\"]", "", text)
    while found := _REPEATED.search(plain):
        piece, times = found[1] if found[1] is not None else found[3], int(found[2] or found[4])
        if len(plain) + len(piece) * times > _LONGEST:
            raise ConfigError(f"is {quoted(text)}, which is far too long", flag)
        plain = plain[: found.start()] + piece * times + plain[found.end() :]
    if not plain or set(plain) - set("EtmL|"):
        raise ConfigError(f"is {quoted(text)}; write it like Et*3|(tt|)*29m|L, with E, t, m, L and |", flag)
    return tuple(stage.count("t") for stage in plain.split("|"))
