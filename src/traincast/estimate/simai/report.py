"""What SimAI-Analytical says of a file."""

from dataclasses import dataclass

from traincast.diagnostics import Note
from traincast.estimate.simai.machine import SimaiMachine
from traincast.estimate.simai.price import SimaiLayout
from traincast.job.simai import SimaiOverlap


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiRow:
    """SimAI's times of one row; communication before any overlap."""

    line: int
    name: str
    forward_compute_s: float
    input_grad_compute_s: float
    weight_grad_compute_s: float
    forward_comm_s: float
    input_grad_comm_s: float
    weight_grad_comm_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiReport:
    """What SimAI-Analytical says of a file, in seconds.

    Parameters
    ----------
    dp_s, dp_ep_s, tp_s, ep_s, pp_s : float
        Exposed communication ("Expose DP comm" and so on).
    bubble_s, compute_s, exposed_s, total_s : float
        "bubble time", "total comp", "total exposed comm" (without PP), "Total time".
    rows : tuple of SimaiRow
        Every row that SimAI reads.
    machine, layout, overlap : SimaiMachine, SimaiLayout, SimaiOverlap
        What it was computed for.
    warnings : tuple of Note
        Where SimAI would crash, print NaN, or take no time in silence.
    """

    dp_s: float
    dp_ep_s: float
    tp_s: float
    ep_s: float
    pp_s: float
    bubble_s: float
    compute_s: float
    exposed_s: float
    total_s: float
    rows: tuple[SimaiRow, ...]
    machine: SimaiMachine
    layout: SimaiLayout
    overlap: SimaiOverlap
    warnings: tuple[Note, ...] = ()
