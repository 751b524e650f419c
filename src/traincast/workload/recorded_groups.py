"""What kind the groups of a recorded run are, and which layout they speak of.

A trace says the members of a group, and perhaps what its framework calls it; a breakdown needs to know whether that is
tensor or data parallel communication.

Letters: W ranks.
"""

import re
from collections.abc import Iterable, Mapping
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Notebook
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.options import LayoutOptions
from traincast.job.parallel import DEGREES, Parallel
from traincast.units import counted
from traincast.workload.groups import rank_groups
from traincast.workload.words import Group

_SPELLINGS: tuple[tuple[str, Group], ...] = (
    (r"\bdefault\b|world", Group.WORLD),
    (r"\bedp\b|expert.*data|data.*expert", Group.EDP),
    (r"\betp\b|expert.*tensor(?!.*model)", Group.ETP),
    (r"\bep\b|expert|\bmoe\b", Group.EP),
    (r"replica|inter.*partial", Group.REPLICA),
    (r"tensor.*(data|context)", Group.WORLD),
    (r"\bdp\b.*shard|partial.*data", Group.SHARD),
    (r"\b(dp|ddp|fsdp)\b|data", Group.DP),
    (r"\bcp\b|context", Group.CP),
    (r"\bpp\b|pipe", Group.PP),
    (r"embed|\bembd?\b", Group.EMB),
    (r"\b(tp|sp)\b|tensor|sequence", Group.TP),
    (r"\bmp\b|model", Group.MP),
    (r"\bshard\b", Group.SHARD),
    (r"\bcopy\b", Group.COPY),
)
"""Words of a group's description, the first that fits counts.

Sources: Megatron-LM, megatron/core/parallel_state.py (``group_desc`` of create_group: TENSOR_MODEL_PARALLEL_GROUP,
DATA_PARALLEL_GROUP_WITH_CP, EXPERT_MODEL_PARALLEL_GROUP, ...); PyTorch, torch/distributed/device_mesh.py (``mesh_`` and
the dimension) and distributed_c10d.py (``default_pg``); torchtitan, torchtitan/distributed/parallel_dims.py (dimensions
dp_replicate, dp_shard, cp, tp, pp, ep).
"""

_BY_MEMBERS = (Group.TP, Group.CP, Group.PP, Group.DP, Group.EP, Group.ETP, Group.EDP, Group.EMB, Group.MP, Group.WORLD)
"""Order in which groups of a layout are looked up."""


def group_named(description: str) -> Group | None:
    """Return the kind of group that a framework's description of it means; None for one that is not known."""
    words = re.sub(r"[^a-z]+", " ", description.lower())
    return next((kind for pattern, kind in _SPELLINGS if re.search(pattern, words)), None)


class Told(Struct, frozen=True):
    """What a trace says of a group."""

    members: tuple[int, ...]
    description: str = ""
    exchanges: bool = False
    """Whether it is used for all-to-alls."""
    messages: bool = False
    """Whether it is used for sends and receives alone."""


class Classified(Struct, frozen=True):
    """The layout of a recorded run, and the kind of each of its groups."""

    parallel: Parallel
    kind_of: Mapping[str, Group]


def classified(groups: Mapping[str, Told], options: LayoutOptions, world: int, notes: Notebook) -> Classified:
    """Decide what the groups of a run are.

    A description counts first; then the members, against the layout that the user gives; then two ranks that only send
    and receive are a pipeline, and what is left is data parallel, over all ranks it is ``world``. Assumptions say so.

    Parameters
    ----------
    groups : mapping
        What the trace says of each group, by its own name.
    options : LayoutOptions
        Degrees that the user gives, and the number of GPUs.
    world : int
        Ranks that the trace speaks of.
    notes : Notebook
        Takes the assumptions.

    Raises
    ------
    ConfigError
        If the user gives fewer GPUs than there are ranks.
    InfeasibleError
        If the degrees do not divide the ranks.
    """
    if options.gpus is not None and options.gpus < world:
        raise ConfigError(f"is {options.gpus}, but the files speak of {world} ranks", "gpus")
    world = options.gpus or world
    kinds = {name: kind for name, each in groups.items() if (kind := group_named(each.description)) is not None}
    parallel = _layout(groups, kinds, options, world, notes)
    asked = any(degree is not None for degree in _degrees(options).values())
    found = _by_members(parallel) if asked else {}
    supposed: dict[Group, list[str]] = {}
    for name, each in groups.items():
        if name in kinds:
            continue
        fits = found.get(frozenset(each.members), ()) if len(each.members) > 1 else ()
        if fits:
            kinds[name] = Group.EP if each.exchanges and Group.EP in fits else fits[0]
            continue
        kinds[name] = _supposed(each, world)
        supposed.setdefault(kinds[name], []).append(name)
    for kind, names in supposed.items():
        if kind is not Group.PP:
            shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
            text = f"{counted(len(names), 'group')} of unknown purpose ({shown}) taken as {kind.name.lower()}"
            notes.assume("groups-supposed", f"{text}; give --tp, --pp and the like to tell them by their members", None)
    return Classified(parallel, kinds)


def _supposed(group: Told, world: int) -> Group:
    if group.messages:
        return Group.PP
    if group.exchanges:
        return Group.EP
    return Group.WORLD if len(group.members) == world else Group.DP


def _degrees(options: LayoutOptions) -> dict[str, int | None]:
    return {name: getattr(options, name) for name in DEGREES if name != "vpp"}


def _layout(
    groups: Mapping[str, Told], kinds: Mapping[str, Group], options: LayoutOptions, world: int, notes: Notebook
) -> Parallel:
    """Return the user's layout, else the one that described groups have, else data parallel ranks."""
    asked = {name: degree for name, degree in _degrees(options).items() if degree is not None}
    said: dict[str, int] = {}
    for name, kind in kinds.items():
        if kind in (Group.TP, Group.CP, Group.PP, Group.EP, Group.ETP):
            key = kind.name.lower()
            said[key] = max(said.get(key, 1), len(groups[name].members))
    if Group.PP not in kinds.values():
        said["pp"] = _stages(groups, world)
    degrees = {**{name: degree for name, degree in said.items() if degree > 1}, **asked}
    dp = degrees.pop("dp", None)
    inner = prod(degrees.get(name, 1) for name in ("tp", "cp", "pp"))
    if world % inner or (dp is not None and dp * inner != world):
        if asked:
            shown = " x ".join(f"{name} {degree}" for name, degree in {**asked, **({"dp": dp} if dp else {})}.items())
            raise InfeasibleError(f"{notes.path}: {counted(world, 'rank')} do not divide into {shown}; change a degree")
        degrees, inner = {}, 1
    try:
        parallel = replace(Parallel(), dp=world // inner, **degrees)
    except InfeasibleError:
        if asked:
            raise
        degrees, parallel = {}, Parallel(dp=world)
    if not asked:
        shown = " x ".join(f"{name} {degree}" for name, degree in {**degrees, "dp": parallel.dp}.items())
        why = "the sizes of its described groups, and its messages" if degrees else "no group says more"
        notes.assume(
            "layout-supposed", f"taken as {shown}: {why}; the order of what runs is recorded all the same", None
        )
    return parallel


def _stages(groups: Mapping[str, Told], world: int) -> int:
    """Return how many stages of a pipeline messages are between, 1 where they are between other ranks.

    Stages are outermost in the order of ranks: all messages go as many ranks up or down, or from one end to the other.
    """
    apart = {abs(each.members[1] - each.members[0]) for each in groups.values() if each.messages}
    stride = min(apart, default=world)
    return world // stride if world % stride == 0 and apart <= {stride, world - stride} else 1


def _by_members(parallel: Parallel) -> dict[frozenset[int], tuple[Group, ...]]:
    """Return the kinds of the groups of a layout by their members."""
    found: dict[frozenset[int], tuple[Group, ...]] = {}
    tables = rank_groups(parallel, _BY_MEMBERS)
    for kind in _BY_MEMBERS:
        for members in _rows(tables[kind].members_GK.tolist()):
            found[members] = (*found.get(members, ()), kind)
    return found


def _rows(members_GK: Iterable[Iterable[int]]) -> Iterable[frozenset[int]]:
    return (frozenset(member for member in row if member >= 0) for row in members_GK)
