"""Which preset a name of a GPU, as files and drivers write it, stands for."""

import re
from collections.abc import Sequence

_OTHER_PARTS = {"pcie", "nvl"}
"""Words that make it another part than the one in the preset of that name."""


def preset_named_in(text: str, presets: Sequence[str]) -> str | None:
    """Return the preset that a text names; the longest where several fit.

    Parameters
    ----------
    text : str
        ``NVIDIA A100-SXM4-80GB``, ``h100_sxm``, ``nccl_allreduce_a100_azure``.
    presets : sequence of str
        Names to choose from; the words of a name must follow each other in the text.

    Returns
    -------
    str or None
        None where there is none.
    """
    words = _words(text)
    if _OTHER_PARTS & set(words):
        return None
    named = [preset for preset in presets if _contains(words, _words(preset))]
    return max(named, key=lambda preset: (len(_words(preset)), preset), default=None)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _contains(words: list[str], wanted: list[str]) -> bool:
    return any(words[start : start + len(wanted)] == wanted for start in range(len(words)))
