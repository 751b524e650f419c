"""Changes to how long the work of a step takes, for what-ifs: some operations faster, or as on similar ranks.

Own work of a rank is what it does without others: computations, gaps of the host, copies. `PEERS` gives it the time
that it takes on the other ranks of its stage, in the median; where a stage has one rank, on like stages: those in the
middle of the pipeline, else all others. Classes of work are compared one by one (kind, phase, part of the step); what
no peer does stays as it is.

Letters: N operations, R simulated ranks, C classes of work, P peers.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from traincast.analysis.breakdown import groups_of_part
from traincast.errors import ConfigError
from traincast.job.changes import BALANCED, GROUPS, OPERATION, PEERS, USUAL, WorkEdit
from traincast.names import known_names
from traincast.workload.ops import BoolArray, FloatArray, IntArray, distinct
from traincast.workload.program import Program
from traincast.workload.words import Group, Kind, Phase

OWN = (Kind.COMPUTE, Kind.GAP, Kind.COPY)
"""Kinds of operations that wait for nobody."""
_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "compute": (Kind.COMPUTE,),
    "host": (Kind.GAP,),
    "copy": (Kind.COPY,),
    "own": OWN,
    "comm": (Kind.COLLECTIVE, Kind.SEND, Kind.RECV),
}
_PHASES = {phase.name.lower(): phase for phase in Phase}
_GROUPS = {f"{name}_comm": groups_of_part(f"exposed_{name}") or (Group[name.upper()],) for name in GROUPS}
"""The kinds of groups that a change of communication is about: all that the part of the breakdown has of that name."""


def ranks_apart(edits: Sequence[WorkEdit]) -> frozenset[int]:
    """Return the ranks that no other rank may stand for."""
    return frozenset(rank for edit in edits for rank in edit.ranks)


def edited(program: Program, duration_s_N: FloatArray, edits: Sequence[WorkEdit]) -> FloatArray:
    """Return the durations of a program's operations after some edits, one after the other.

    Raises
    ------
    ConfigError
        If an edit is of a rank or stage that does not exist, of work that there is none of, or there are no peers.
    """
    for edit in edits:
        work_N = _work(program, edit)
        here_N = work_of(program, edit)
        if not here_N.any():
            raise ConfigError(f"this step has no work called {edit.shown}, so there is nothing to change", "what_if")
        if edit.like == PEERS:
            duration_s_N = _like_peers(program, duration_s_N, edit, here_N, work_N)
        elif edit.like:
            duration_s_N = np.where(here_N, _like_others(program, duration_s_N, edit.like, here_N), duration_s_N)
        else:
            duration_s_N = np.where(_with_members(program, here_N), duration_s_N * edit.factor, duration_s_N)
    return duration_s_N


def _like_peers(
    program: Program, duration_s_N: FloatArray, edit: WorkEdit, here_N: BoolArray, work_N: BoolArray
) -> FloatArray:
    """Return durations with some ranks' work as long as on their peers."""
    index_N = np.repeat(np.arange(len(program.rank_R)), np.diff(program.op_ptr_R1))
    again_s_N, chosen = duration_s_N.copy(), distinct(index_N[here_N])
    for index in chosen.tolist():
        peers = peers_of(program, index, besides=chosen, of_stage=bool(edit.stages))
        again_s_N[program.rank_slice(index)] *= _as_peers(program, duration_s_N, index, work_N, peers)
    return again_s_N


def _like_others(program: Program, duration_s_N: FloatArray, like: str, here_N: BoolArray) -> FloatArray:
    """Return what each operation of some work takes on the whole: in the mean of its rank or stage, or the median."""
    _, name_T = np.unique(np.array(program.ops.name_T, dtype=str), return_inverse=True)
    name_N = name_T[program.row_N]
    if like == USUAL:
        usual_s_N = duration_s_N.copy()
        # Where no other member was recorded, waiting for it may be in the time.
        met_N = here_N & (program.rendezvous_N >= 0)
        for name in distinct(name_N[met_N]).tolist():
            at = np.flatnonzero(met_N & (name_N == name))
            usual_s_N[at] = np.minimum(usual_s_N[at], np.median(duration_s_N[at]))
        return usual_s_N
    place_N = program.stage_N if like == BALANCED else program.rank_N
    _, which_N = np.unique(np.stack([place_N[here_N], name_N[here_N]]), axis=1, return_inverse=True)
    weight = np.repeat(program.represents_R, np.diff(program.op_ptr_R1))[here_N]
    mean_s = np.bincount(which_N, duration_s_N[here_N] * weight) / np.bincount(which_N, weight)
    even_s_N = duration_s_N.copy()
    even_s_N[here_N] = mean_s[which_N]
    return even_s_N


def work_of(program: Program, edit: WorkEdit) -> BoolArray:
    """Return which operations an edit is of, [N].

    Raises
    ------
    ConfigError
        If it is of a rank, stage or operation that does not exist.
    """
    chosen_N: BoolArray = _work(program, edit) & _place(program, edit)
    return chosen_N


def _work(program: Program, edit: WorkEdit) -> BoolArray:
    """Return which operations do the work of an edit, on all ranks, [N]."""
    ops = program.ops
    if edit.work.startswith(OPERATION):
        name = edit.work.removeprefix(OPERATION)
        chosen_T = np.array([each == name for each in ops.name_T], dtype=np.bool_)
        if not chosen_T.any():
            known = known_names(name, sorted(set(ops.name_T)))
            raise ConfigError(f"no operation is called {name!r}; {known}", "what_if")
    elif edit.work in _GROUPS:
        chosen_T = np.isin(ops.group_T, _GROUPS[edit.work]) & np.isin(ops.kind_T, _KINDS["comm"])
    elif edit.work in _PHASES:
        chosen_T = (ops.phase_T == _PHASES[edit.work]) & (ops.kind_T == Kind.COMPUTE)
    else:
        # On peers a computation comes with the pauses of the host before it.
        kinds = OWN if edit.like == PEERS and edit.work == "compute" else _KINDS[edit.work]
        chosen_T = np.isin(ops.kind_T, kinds)
    chosen_N: BoolArray = chosen_T[program.row_N]
    return chosen_N


def _place(program: Program, edit: WorkEdit) -> BoolArray:
    """Return which operations are where an edit is of, [N]."""
    here_N = np.ones(len(program), dtype=np.bool_)
    for numbers, known_R, number_N, what in (
        (edit.ranks, program.rank_R, program.rank_N, "rank"),
        (edit.stages, program.stage_R, program.stage_N, "stage"),
    ):
        for number in numbers:
            _check_there(number, known_R, what)
        if numbers:
            here_N &= np.isin(number_N, numbers)
    return here_N


def _check_there(number: int, known_R: IntArray, what: str) -> None:
    if number not in known_R:
        raise ConfigError(f"there is no {what} {number} (they are 0 to {known_R.max()})", "what_if")


def _with_members(program: Program, chosen_N: BoolArray) -> BoolArray:
    """Add the other members of rendezvous: a transfer takes as long as its longest member."""
    rendezvous_N = program.rendezvous_N
    met = rendezvous_N[chosen_N & (rendezvous_N >= 0)]
    if not len(met):
        return chosen_N
    touched_J = np.zeros(int(rendezvous_N.max()) + 1, dtype=np.bool_)
    touched_J[met] = True
    return chosen_N | ((rendezvous_N >= 0) & touched_J[np.maximum(rendezvous_N, 0)])


def _as_peers(program: Program, duration_s_N: FloatArray, index: int, work_N: BoolArray, peers: IntArray) -> FloatArray:
    """Return what the durations of one rank are multiplied with for some work to take what it takes on its peers."""
    if not len(peers):
        rank = program.rank_R[index]
        raise ConfigError(
            f"rank {rank} has no peers to compare with: no other rank of its stage, no other stage", "what_if"
        )
    class_T, count = _classes(program)

    def sums(each: int) -> FloatArray:
        of_rank = program.rank_slice(each)
        own_s_N = np.where(work_N[of_rank], duration_s_N[of_rank], 0.0)
        return np.bincount(class_T[program.row_N[of_rank]], own_s_N, count).astype(np.float64)

    usual_C = _medians(np.stack(list(map(sums, peers.tolist()))), program.represents_R[peers])
    own_C, mine = sums(index), program.rank_slice(index)
    factor_C = np.divide(usual_C, own_C, out=np.ones(count), where=(own_C > 0) & (usual_C > 0))
    factor_N: FloatArray = np.where(work_N[mine], factor_C[class_T[program.row_N[mine]]], 1.0)
    return factor_N


def peers_of(
    program: Program, index: int, *, besides: Sequence[int] | IntArray = (), of_stage: bool = False
) -> IntArray:
    """Return the indices of the ranks that do what one does: of its stage, else (or if `of_stage`) of like stages.

    Those `besides` it that are to be as their peers themselves are none.
    """
    stage_R, stage = program.stage_R, int(program.stage_R[index])
    other_R = ~np.isin(np.arange(len(stage_R)), [index, *besides])
    others = np.flatnonzero((stage_R == stage) & other_R)
    if len(others) and not of_stage:
        of_its_stage: IntArray = others
        return of_its_stage
    last = int(stage_R.max())
    other_R &= stage_R != stage
    middle = np.flatnonzero((stage_R > 0) & (stage_R < last) & other_R)
    peers: IntArray = middle if len(middle) else np.flatnonzero(other_R)
    return peers


def _classes(program: Program) -> tuple[IntArray, int]:
    """Return a number for the class of work of each template operation, and how many there are."""
    ops = program.ops
    columns = zip(ops.kind_T.tolist(), ops.phase_T.tolist(), ops.part_T, strict=True)
    numbers: dict[tuple[int, int, str | None], int] = {}
    classes_T = np.array([numbers.setdefault(each, len(numbers)) for each in columns], dtype=np.int64)
    return classes_T, len(numbers)


def _medians(value_PC: FloatArray, weight_P: IntArray) -> FloatArray:
    """Return the weighted median of each column."""
    weighted = np.repeat(value_PC, np.minimum(weight_P, 1_000), axis=0)
    medians: FloatArray = np.median(weighted, axis=0)
    return medians
