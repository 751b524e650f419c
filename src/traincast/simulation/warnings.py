"""What a simulation says in addition to its numbers: what was assumed of overlap and links, and what looks wrong."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.estimate.collectives.cost import TABLE
from traincast.estimate.contention import OVERLAP_SLOWDOWN, classes_present
from traincast.job.parallel import Parallel
from traincast.simulation.result import MEASURED
from traincast.simulation.step import Setting, Step
from traincast.units import counted, format_share, format_size
from traincast.workload.ops import distinct
from traincast.workload.program import Program
from traincast.workload.words import Group

_FAR = 0.1
"""Deviation from a measured step above which a warning is due; repeats of a run vary by about 1 %."""


def assumed(step: Step) -> tuple[Note, ...]:
    """Return what was assumed of a step's communication and overlap, with its arithmetic."""
    found = _measured_tables(step), step.rate_notes, _shared_links(step), _overlap(step), _seeds_spread(step)
    return tuple(chain.from_iterable(found))


def suspicious(step: Step) -> tuple[Note, ...]:
    """Return what looks wrong with a step, or was asked for and changes nothing."""
    given, dropped = step.layout.schedule_warnings, without_peers(step.program, step.workload.parallel)
    unused = _unused_rates(step), _unused_slowdowns(step), _unused_seeds(step.setting)
    return tuple(chain(given, dropped, _far_from_measured(step), *unused))


def _shared_links(step: Step) -> Iterator[Note]:
    """Note which groups share links, of one kind or of two, and which link holds them back.

    Times that the input measured are not longer for it, so kinds that were not estimated are left out.
    """
    estimated = {each.group for each in step.costs.communications if each.cost.algorithm != MEASURED}
    alike: dict[tuple[float, str], list[Group]] = {}
    for kind, each in step.contention.items():
        if each.bottleneck is not None and kind in estimated:
            alike.setdefault((round(each.factor, 2), each.bottleneck), []).append(kind)
    own = [
        f"all groups of a kind communicate at once: {_named(kinds)} groups are slowed {factor:.2f}x between nodes "
        f"by contention on {bottleneck}"
        for (factor, bottleneck), kinds in alike.items()
    ]
    own_brief = [
        f"{_named(kinds)} groups share links between nodes: slowed {factor:.2f}x on {bottleneck}"
        for (factor, bottleneck), kinds in alike.items()
    ]
    share = {(each.kind, each.other): each.share for each in step.settled.shared}
    pairs = [
        f"{_named([kind, other])} groups communicate at the same time, {format_share(share[kind, other], None)} and "
        f"{format_share(share[other, kind], None)} of their transfers between nodes: then they are slowed "
        f"another {each.factor:.2f}x by contention on {each.bottleneck}"
        for each in step.settled.shared
        if (kind := each.kind) < (other := each.other)
    ]
    pairs_brief = [
        f"{_named([each.kind, each.other])} groups communicate at the same time: slowed another {each.factor:.2f}x "
        f"on {each.bottleneck}"
        for each in step.settled.shared
        if each.kind < each.other
    ]
    texts = zip(own + pairs, own_brief + pairs_brief, strict=True)
    yield from (Note("shared-links", text, brief=brief) for text, brief in texts)


def without_peers(program: Program, parallel: Parallel) -> tuple[Note, ...]:
    """Warn of communications that carry bytes, but whose group has one member, so that they take no time.

    One note for each kind of group, with what the rank drops that drops most. A communication with a time of
    its own keeps it and is not counted; a job built from a model has none over a degree of 1.
    """
    ops, row_N, group_N = program.ops, program.row_N, program.group_N
    sizes_G = np.array([len(group.members) for group in program.groups], dtype=np.int64)
    at = np.flatnonzero((group_N >= 0) & np.isnan(program.known_s_N) & (ops.size_bytes_T[row_N] > 0))
    at = at[sizes_G[group_N[at]] == 1]
    notes = []
    for kind in sorted({Group(int(each)) for each in distinct(ops.group_T[row_N[at]])}):
        mine = at[ops.group_T[row_N[at]] == kind]
        repeats = ops.repeats_T[row_N[mine]]
        bytes_W = np.bincount(program.rank_N[mine], ops.size_bytes_T[row_N[mine]] * repeats)
        rank = int(bytes_W.argmax())
        count = round(float(repeats[program.rank_N[mine] == rank].sum()))
        name = kind.name.lower()
        text = (
            f"{counted(count, 'communication')} over {name} ({format_size(bytes_W[rank])} in all on rank {rank}) "
            f"{'takes' if count == 1 else 'take'} no time, because the {name} group has one member here "
            f"({_degree_behind(kind, parallel)}); give --gpus or a degree if the "
            "run had more ranks"
        )
        notes.append(Note("group-of-one", text, program.place(int(row_N[mine[0]]))[2:-1] or None))
    return tuple(notes)


def check_time(step: Step) -> None:
    """Refuse a step in which nothing takes time; of communication on a cluster where it is free that is the answer.

    Raises
    ------
    FormatError
        With the input, why nothing takes time, and what to give.
    """
    if step.timeline.step_s > 0 or (step.setting.cluster.ideal and step.costs.communications):
        return
    dropped, inputs = without_peers(step.program, step.workload.parallel), step.workload.inputs
    why = "; ".join(note.text for note in dropped) or (
        "it has no computation with a time, and no communication that carries bytes"
    )
    raise FormatError(f"nothing in this step takes time: {why}", inputs[0].path if inputs else "step")


def _degree_behind(kind: Group, parallel: Parallel) -> str:
    """Return the degrees that make groups of a kind have one member."""
    degrees = {
        Group.DP: ("dp", "cp"),
        Group.EMB: ("pp",),
        Group.MP: ("tp", "pp"),
        Group.WORLD: ("world_size",),
        Group.ETP: ("expert_tp",),
        Group.SHARD: ("sharing",),
        Group.REPLICA: ("dp", "cp", "sharing"),
    }.get(kind, (kind.name.lower(),))
    named = {"expert_tp": "etp", "world_size": "world", "sharing": "ranks that share state"}
    return ", ".join(f"{named.get(degree, degree)} {getattr(parallel, degree)}" for degree in degrees)


def _measured_tables(step: Step) -> Iterator[Note]:
    """Note how many of the distinct communications have their time from a measured table of the cluster."""
    known = step.costs.communications
    looked_up = [each for each in known if each.cost.algorithm == TABLE]
    if not looked_up:
        return
    groups = sorted({(each.operation.name.lower(), each.placement.ranks) for each in looked_up})
    shown = ", ".join(f"{op} over {ranks} ranks" for op, ranks in groups)
    brief = f"{len(looked_up)} of {len(known)} distinct communications come from the cluster's measured tables"
    yield Note("measured-table", f"{brief}: {shown}", brief=brief)


def _overlap(step: Step) -> Iterator[Note]:
    """Note what overlap costs, and how well the loop that finds it has settled."""
    settled = step.settled
    if not settled.rounds:
        return
    rates = {**OVERLAP_SLOWDOWN, **step.setting.overlap_slowdown}
    shown = ", ".join(
        f"{name} {rates[name]:.3g}" for name in classes_present(step.program, step.workload.compute_is_in_situ)
    )
    longer = settled.timeline.step_s / settled.alone_step_s - 1
    last = 100 * settled.residual
    text = (
        f"overlapped work takes longer (slowdown at full overlap: {shown}): +{format_share(longer, 2)} on the step, "
        f"found in {counted(settled.rounds, 'round')} of simulation; the last round changed the step by "
        f"{f'{last:.4f}' if last >= 1e-4 else 'less than 0.0001'} %"
    )
    brief = f"overlapped computation and communication slow each other down: +{format_share(longer)} on the step"
    yield Note("overlap-slowdown", text, brief=brief, effect=longer)


def _unused_slowdowns(step: Step) -> Iterator[Note]:
    """Warn of slowdowns that were given for classes without an operation; a number for all of them needs none."""
    given, in_situ = set(step.setting.overlap_slowdown), step.workload.compute_is_in_situ
    present = classes_present(step.program, in_situ)
    if given == set(OVERLAP_SLOWDOWN):
        return
    there = f"there is {', '.join(present) or 'none'}"
    why = f"no operation of this step belongs to it ({there})"
    if in_situ:
        why = f"no operation belongs to it (computations measured in a run hold their overlap; {there})"
    yield from (
        Note("overlap-slowdown-unused", f"--overlap-slowdown {name} changes nothing: {why}")
        for name in OVERLAP_SLOWDOWN
        if name in given and name not in present
    )


def _seeds_spread(step: Step) -> Iterator[Note]:
    """Note the spread of the step over hash seeds, the fabric's own first."""
    steps_s = [step.timeline.step_s, *step.of_other_seeds()]
    if len(steps_s) < 2:
        return
    text = (
        f"step over {len(steps_s)} hash seeds: min {min(steps_s):.6g} s, median {np.median(steps_s):.6g} s, "
        f"max {max(steps_s):.6g} s; shown: that of the fabric's own seed, {steps_s[0]:.6g} s"
    )
    yield Note("network-seeds", text)


def _unused_seeds(setting: Setting) -> Iterator[Note]:
    """Warn of seeds that were asked for where no flow is hashed."""
    if setting.network_seeds == 1 or setting.hashes_flows:
        return
    fabric = setting.cluster.fabric
    if fabric is None or fabric.routing != "ecmp":
        why = 'no flow is hashed (that takes a [fabric] with routing = "ecmp")'
    elif setting.cluster.ideal:
        why = "communication takes no time on this cluster"
    else:
        why = f"--network {setting.network} solves no flows"
    yield Note("network-seeds-unused", f"seeds change nothing: {why}")


def _unused_rates(step: Step) -> Iterator[Note]:
    """Warn of bus bandwidths given for groups, or operations of them, whose times were not estimated."""
    used = set()
    for each in step.costs.communications:
        if each.cost.algorithm != MEASURED:
            group = each.group.name.lower()
            used |= {group, f"{group}.{each.operation.name.lower()}"}
    unused = [name for name in step.setting.busbw_bytes_per_s if name not in used]
    if not unused:
        return
    so = "it changes" if len(unused) == 1 else "they change"
    text = f"--busbw {', '.join(unused)}: no such communication was estimated, so {so} nothing"
    yield Note("busbw-unused", text)


def _far_from_measured(step: Step) -> Iterator[Note]:
    """Warn where the simulated step is not the measured one."""
    measured, step_s = step.workload.measured, step.timeline.step_s
    if measured is None or abs(off := step_s / measured.step_s - 1) <= _FAR:
        return
    text = (
        f"the simulated step of {step_s:.3f} s is {format_share(off, 0, '+')} off the measured "
        f"{measured.step_s:.3f} s: what was not traced had to be assumed"
    )
    yield Note("far-from-measured", text)


def _named(kinds: Sequence[Group]) -> str:
    *most, last = (kind.name.lower() for kind in kinds)
    return f"{', '.join(most)} and {last}" if most else last
