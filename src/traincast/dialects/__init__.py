"""What people paste: launch commands, flags and configuration files of other frameworks, read as a job and written."""

from collections.abc import Callable, Sequence

from traincast.dialects.accelerate_settings import draft_of_accelerate
from traincast.dialects.bridge_settings import draft_of_bridge, draft_of_nemo
from traincast.dialects.bridge_writing import bridge_text
from traincast.dialects.deepspeed_settings import draft_of_deepspeed
from traincast.dialects.flags import flag_table
from traincast.dialects.maxtext_settings import draft_of_maxtext
from traincast.dialects.megatron_flags import draft_of_megatron
from traincast.dialects.megatron_writing import megatron_text
from traincast.dialects.torchtitan_flags import draft_of_torchtitan
from traincast.dialects.torchtitan_writing import torchtitan_text
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.registry import known_name

LIKES: dict[str, Callable[..., Draft]] = {
    "megatron": draft_of_megatron,
    "torchtitan": draft_of_torchtitan,
    "deepspeed": draft_of_deepspeed,
    "maxtext": draft_of_maxtext,
    "accelerate": draft_of_accelerate,
    "bridge": draft_of_bridge,
    "nemo": draft_of_nemo,
}
"""Name to the reader of its command line and files."""
WRITES: dict[str, Callable[[Job], str]] = {
    "megatron": megatron_text,
    "bridge": bridge_text,
    "torchtitan": torchtitan_text,
}
"""Name to the writer of a job in its words, which its reader reads; what it cannot be told is a comment."""


def likely_framework(words: Sequence[str]) -> str:
    """Return the framework whose flags a pasted line has most of; one that its script is named after goes before."""

    def evidence(name: str) -> tuple[bool, int]:
        table = flag_table(name)
        flags = [word.lstrip("-").partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
        known = sum(table.find(table.spellings.get(flag, (flag,))[0]) is not None for flag in flags)
        return any(name in word.lower() for word in words if not word.startswith("-")), known

    return max(LIKES, key=evidence)


def draft_like(name: str, words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a pasted command line of a framework.

    Parameters
    ----------
    name : str
        One of `LIKES`.
    words : sequence of str
        Its words, launcher, assignments and script among them or not; or one word, the text of a script.
    strict : bool, default False
        Refuse unknown flags instead of warning of them.

    Raises
    ------
    UnknownNameError
        If its flags are not known here.
    ConfigError
        If a flag has a wrong value or makes a job that cannot be described, or is unknown and `strict` is set.
    """
    return LIKES[known_name("framework", name, LIKES)](words, strict=strict)
