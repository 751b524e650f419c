"""What formats decide alike of the layout of a run: its ranks, its microbatches, the messages between its stages."""

from collections.abc import Mapping
from math import prod

from traincast.diagnostics import Notebook
from traincast.errors import InfeasibleError
from traincast.job.options import LayoutOptions
from traincast.units import counted

NODE_RANKS = 8
"""Ranks of a file that says none, such as a test of a collective: one node of eight GPUs."""


def asked_dp(options: LayoutOptions, degrees: Mapping[str, int], path: str) -> int | None:
    """Return the data parallel degree that the user asks for, as it is or by the number of GPUs; None for neither.

    The product of all other `degrees` is the ranks of one replica.

    Raises
    ------
    InfeasibleError
        If dp and GPUs contradict each other, or the GPUs are not whole replicas.
    """
    if options.dp is None:
        return None if options.gpus is None else replicas(options.gpus, degrees, path)
    world = options.dp * prod(degrees.values())
    if options.gpus not in (None, world):
        raise InfeasibleError(
            f"{path}: gpus={options.gpus} contradicts dp {options.dp} x {_shown(degrees)} = {world}; change the GPUs "
            "or a degree"
        ).typed(gpus="--gpus")
    return options.dp


def replicas(world: int, degrees: Mapping[str, int], path: str) -> int:
    """Return how many replicas some ranks are (see `asked_dp`); InfeasibleError says how many would be left over."""
    replica = prod(degrees.values())
    if world % replica:
        raise InfeasibleError(
            f"{path}: {counted(world, 'rank does', 'ranks do')} not divide into {_shown(degrees)} = {replica}; "
            f"{world % replica} would be left over (change the GPUs or a degree)"
        )
    return world // replica


def _shown(degrees: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {degree}" for name, degree in degrees.items())


def microbatches_of(options: LayoutOptions, held: int, where: str, notes: Notebook) -> int:
    """Return the microbatches of the step: the user's, which drop or repeat the `held` ones of the file, else these.

    Notes say what is dropped or repeated; `where` is what holds them there: ``the file``, ``the step``.
    """
    chosen = held if options.microbatches is None else options.microbatches
    if chosen < held:
        run = "first of them runs" if chosen == 1 else f"first {chosen} of them run"
        notes.assume("blocks-dropped", f"{where} has {held} microbatches; only the {run}", None)
    elif chosen > held > 0:
        found = counted(held, "microbatch", "microbatches")
        notes.assume("blocks-repeated", f"{where} has {found}; the last one is repeated to make {chosen}", None)
    return chosen


def known_message_bytes(options: LayoutOptions, pp: int, written: int | None, notes: Notebook) -> int | None:
    """Return the bytes of a message between `pp` stages where they are known, the user's before the written ones.

    0 written bytes are none. A single stage sends nothing; notes say where the user's size has no use.
    """
    if options.pp_message_bytes is None:
        return written or (0 if pp == 1 else None)
    if pp == 1:
        notes.assume("pp-comm-unused", "a single stage sends no messages, so their given size is not used", None)
    return options.pp_message_bytes


def warn_single_microbatch(notes: Notebook, stages: int, virtual: int, microbatches: int, line: int | None = 1) -> None:
    """Warn where one microbatch walks a whole pipeline of so many virtual stages, so that nothing overlaps."""
    if stages > 1 and microbatches == 1:
        notes.warn(
            "single-microbatch",
            f"one microbatch walks all {virtual} virtual stages one after the other, so {stages - 1} of {stages} "
            "stages always wait and nothing overlaps; give --microbatches if the run had more",
            line,
        )
