"""The rows of blocks: shares of the work with the degrees of their layouts, as columns.

Letters: K shares, A degrees that share parameters alike.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.planning.degrees import Degrees
from traincast.planning.screen.state_times import Sharding
from traincast.planning.screen.ways import Ways
from traincast.workload.ops import IntArray

T = TypeVar("T")


class ShareKey(NamedTuple):
    """A rank's share of the work, whatever the pipeline."""

    tp: int
    cp: int
    ep: int
    etp: int
    sequence_parallel: bool
    micro_batch: int
    packed_work: float
    """Attention of packs that ranks wait for, which depends on dp; 0 where nothing is packed of several lengths."""
    overlap_tp: bool


class Member(Struct, frozen=True):
    """A share with the degrees of a layout."""

    share: int
    degrees: Degrees


class Members(Struct, dict=True):
    """Shares of one number of stages, those with the same ways to shard as neighbours, and what is known of them."""

    members: tuple[Member, ...]
    shares: Sequence[ShareKey]
    global_batch: int
    shardings: Mapping[int, Sequence[Sharding]]
    """Ways to shard the state, by replicas of the parameters."""
    folded_experts: bool
    """Whether which replicas split sequences makes no difference to groups of experts."""
    _known: dict[object, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.members)

    def once(self, key: object, made: Callable[[], T]) -> T:
        """Return something of these shares, whatever pipeline asks: made once for a key."""
        if key not in self._known:
            self._known[key] = made()
        found: T = self._known[key]
        return found

    def with_counts(self, counts: frozenset[int]) -> "Members":
        """Return those of some numbers of microbatches."""

        def chosen() -> Members:
            able = np.isin(self.microbatches_K, sorted(counts)).tolist()
            members = tuple(each for each, runs in zip(self.members, able, strict=True) if runs)
            return replace(self, members=members, _known={})

        return self.once(("with counts", counts), chosen)

    def only(self, wanted_K: tuple[bool, ...]) -> "Members":
        """Return those that are wanted."""
        if all(wanted_K):
            return self
        members = tuple(each for each, wanted in zip(self.members, wanted_K, strict=True) if wanted)
        return self.once(("only", wanted_K), lambda: replace(self, members=members, _known={}))

    @cached_property
    def share_K(self) -> IntArray:
        """Each share in the tables of its family."""
        return np.array([member.share for member in self.members])

    @cached_property
    def microbatches_K(self) -> IntArray:
        """Microbatches of a step."""
        batch, shares = self.global_batch, self.shares
        return np.array([batch // (each.degrees.dp * shares[each.share].micro_batch) for each in self.members])

    def in_pipeline_K(self, local_batch: int) -> IntArray:
        """Return the microbatches after which pipelines run empty that do so after so many sequences of a replica."""
        return np.array(
            [
                min(count, local_batch // self.shares[each.share].micro_batch)
                for each, count in zip(self.members, self.microbatches_K.tolist(), strict=True)
            ]
        )

    @cached_property
    def degrees(self) -> tuple[Degrees, ...]:
        """The degrees of every share."""
        return tuple(member.degrees for member in self.members)

    @cached_property
    def columns(self) -> dict[str, IntArray]:
        """Every degree of every share, each [K]."""
        names = [name for name in Degrees.__struct_fields__ if name != "pp"]
        columns = np.array([[getattr(each, name) for name in names] for each in self.degrees]).T
        return dict(zip(names, columns, strict=True))

    @cached_property
    def replicas_K(self) -> IntArray:
        """Ranks with equal dense parameters."""
        found: IntArray = self.columns["dp"] * self.columns["cp"]
        return found

    def ways(self, zero: int, most: int) -> Ways:
        """Return the ways to shard the state with one stage of ZeRO, in runs of at most so many pairs."""
        of = {count: tuple(way for each, way in found if each == zero) for count, found in self.shardings.items()}
        ways_K = tuple(of[each] for each in self.replicas_K.tolist())
        # Stages of ZeRO have the same ways.
        found = self.once(("ways", ways_K, most), lambda: Ways.from_shares(zero, ways_K, most))
        return found if found.zero == zero else replace(found, zero=zero)

    @cached_property
    def _alike(self) -> tuple[dict[tuple[int, int, int, int, int], int], IntArray]:
        """The first share of all that share parameters alike, and which of these each share is."""
        folded = self.folded_experts
        keys = [(each.tp, each.replicas, each.ep, each.etp, 1 if folded else each.cp) for each in self.degrees]
        first: dict[tuple[int, int, int, int, int], int] = {}
        for place, key in enumerate(keys):
            first.setdefault(key, place)
        number = {key: each for each, key in enumerate(first)}
        return first, np.array([number[key] for key in keys])

    @property
    def alike(self) -> tuple[tuple[int, int, int, int, int], ...]:
        """Degrees that share parameters alike, [A]: cp counts as dp where groups of experts are folded."""
        return tuple(self._alike[0])

    @property
    def places_A(self) -> tuple[int, ...]:
        """The first share of each of them."""
        return tuple(self._alike[0].values())

    @property
    def alike_K(self) -> IntArray:
        """Which of them each share is."""
        return self._alike[1]
