"""What people paste: launch commands, flags and configuration files of other frameworks, read as a job and written."""

from collections.abc import Callable, Sequence

from traincast.dialects.flags import flag_table
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.lazy import function_on_demand
from traincast.registry import known_name

LIKES: dict[str, Callable[..., Draft]] = {
    "megatron": function_on_demand("traincast.dialects.megatron_flags", "draft_of_megatron"),
    "torchtitan": function_on_demand("traincast.dialects.torchtitan_flags", "draft_of_torchtitan"),
    "deepspeed": function_on_demand("traincast.dialects.deepspeed_settings", "draft_of_deepspeed"),
    "maxtext": function_on_demand("traincast.dialects.maxtext_settings", "draft_of_maxtext"),
    "accelerate": function_on_demand("traincast.dialects.accelerate_settings", "draft_of_accelerate"),
    "bridge": function_on_demand("traincast.dialects.bridge_settings", "draft_of_bridge"),
    "nemo": function_on_demand("traincast.dialects.bridge_settings", "draft_of_nemo"),
}
"""Name to the reader of its command line and files; most commands need none."""
WRITES: dict[str, Callable[[Job], str]] = {
    "megatron": function_on_demand("traincast.dialects.megatron_writing", "megatron_text"),
    "bridge": function_on_demand("traincast.dialects.bridge_writing", "bridge_text"),
    "torchtitan": function_on_demand("traincast.dialects.torchtitan_writing", "torchtitan_text"),
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
