"""Tell a rank trace by its first line, and which kind of run wrote it."""

from collections.abc import Sequence
from dataclasses import dataclass

from traincast.errors import FormatError
from traincast.formats.contract import Sniff
from traincast.formats.echo.grammar import HEAD, parse_line
from traincast.formats.echo.lines import TraceOp

REAL_RUN = "Echo rank trace of a real run"
PROFILE = "Echo single-GPU profile"
PLAN = "Echo scheduling plan"
BUCKETS = "2026 trace with gradient buckets"


@dataclass(frozen=True, slots=True)
class Generation:
    """What wrote a trace, how sure that is, and why it is believed."""

    text: str
    confidence: float
    evidence: tuple[str, ...]


def looks_like(head: str) -> Sniff:
    """Tell how sure it is that a text begins a rank trace or a scheduling plan.

    Parameters
    ----------
    head : str
        The beginning of a file.

    Returns
    -------
    Sniff
    """
    line, _, more = head.removeprefix("\ufeff").lstrip().partition("\n")
    if HEAD.match(line) is None:
        return Sniff(0.0, "the first line does not begin like rank:0:forward_step(")
    try:
        parse_line(line, "", 1)
    except FormatError as problem:
        if not more and "duration=" in line:
            return Sniff(0.8, "begins like a rank trace; its first line goes on beyond the text seen")
        return Sniff(0.5, f"begins like a rank trace, but the first line cannot be read{problem}")
    return Sniff(0.98, "the first line is an operation of a rank trace")


def generation(ops: Sequence[TraceOp]) -> Generation:
    """Tell which kind of run a trace is of.

    Parameters
    ----------
    ops : sequence of TraceOp
        All operations of a file.

    Returns
    -------
    Generation
    """
    played = sum(op.is_simulated for op in ops)
    how = (f"{played} of {len(ops)} operations are marked as simulation or have no schedule state",)
    if any(op.op == "ddp_grad_comm" for op in ops):
        played_by = "one GPU played the rank" if played else "all ranks ran"
        return Generation(BUCKETS, 0.95, ("lines of gradient buckets (ddp_grad_comm)", *how, played_by))
    if all(op.duration_s is None for op in ops):
        return Generation(PLAN, 0.95, ("no operation has a duration",))
    later = ("fields of the traces of 2026 (cmd_uid)",) if any(op.raw("cmd_uid") for op in ops) else ()
    if played:
        return Generation(PROFILE, 0.95 if played == len(ops) else 0.6, (*how, *later))
    return Generation(REAL_RUN, 0.95, ("every operation has a schedule state and a time of its own", *later))
