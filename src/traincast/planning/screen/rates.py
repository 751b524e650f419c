"""What operations take on the shares of one family of layouts: the seconds of exchanges, copies, and the host's work.

Letters: K shares, J sets of degrees.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traincast.lowering.work import Exchange
from traincast.planning.screen.costs import Operators
from traincast.planning.screen.transfers import Links
from traincast.workload.ops import FloatArray, IntArray
from traincast.workload.words import CostClass, Group, Phase, Stream


class Each(tuple[Hashable, ...]):
    """What tells each of several kinds of virtual stages that are worked out together."""

    __slots__ = ()


def repeated(value: Any, kinds: int) -> Any:  # noqa: ANN401
    """Return something of shares [K] for as many of each of several kinds, [X]; what differs among none stays."""
    if isinstance(value, np.ndarray):
        return np.concatenate((value,) * kinds) if value.ndim == 1 else np.tile(value, kinds)
    if isinstance(value, Struct):
        found = {name: repeated(getattr(value, name), kinds) for name in value.__struct_fields__}
        changed = {name: each for name, each in found.items() if each is not getattr(value, name)}
        return replace(value, **changed) if changed else value
    return value


class ShareRates(Struct, dict=True):
    """The seconds of what emitters of one family of layouts write, on shares [K]."""

    operators: Operators
    links_J: tuple[Links, ...]
    """Communications of each distinct set of the innermost degrees, whose groups sit alike in all layouts."""
    which_K: IntArray
    """The set of each share."""
    host: Callable[[CostClass, Phase], float]
    """Factor on what the host does in a pass."""
    bytes_per_s: Mapping[Stream, float]
    """Rates of the links to the host, and of its memory."""
    held_share: float = 0.0
    """By how much what multiprocessors bind is slower while a dispatcher holds some of them."""
    _known: dict[tuple[object, ...], FloatArray] = {}
    _alike: dict[Group, Collection[tuple[Links, IntArray]]] = {}

    def of_kinds(self, kinds: int) -> "ShareRates":
        """Return them on the shares of several kinds of virtual stages, one kind after the other."""
        said = {name: getattr(self, name) for name in ShareRates.__struct_fields__}
        said |= {"which_K": repeated(self.which_K, kinds), "_known": {}, "_alike": {}}
        return RatesOfKinds(**said, one=self, kinds=kinds)

    def alike(self, group: Group) -> Collection[tuple[Links, IntArray]]:
        """Return shares whose groups of a kind sit alike, with the communications of one of them."""
        if group not in self._alike:
            of_span: dict[Hashable, list[int]] = {}
            for place, links in enumerate(self.links_J):
                of_span.setdefault(links.told(group), []).append(place)
            self._alike[group] = [
                (self.links_J[sets[0]], np.flatnonzero(np.isin(self.which_K, sets))) for sets in of_span.values()
            ]
        return self._alike[group]

    def transfer_s(self, each: Exchange) -> FloatArray:
        """Return the seconds of an exchange, [K]."""
        sizes = np.asarray(each.size_bytes, dtype=np.int64).reshape(-1)
        key = (each.group, each.operation, sizes.tobytes())
        if key not in self._known:
            size_K, time_s_K = np.broadcast_to(sizes, len(self.which_K)), np.zeros(len(self.which_K))
            for links, shares in self.alike(each.group):
                at = shares[size_K[shares] > 0]
                if len(at):
                    time_s_K[at] = links.seconds(each.group, each.operation, size_K[at])
            self._known[key] = time_s_K
        return self._known[key]


class RatesOfKinds(ShareRates, kw_only=True):
    """The seconds of what emitters write on shares of several kinds of virtual stages."""

    one: ShareRates
    """Those on the shares alone."""
    kinds: int

    def transfer_s(self, each: Exchange) -> FloatArray:
        """Return the seconds of an exchange."""
        size_bytes = each.size_bytes
        if np.ndim(size_bytes):
            each = each._replace(size_bytes=size_bytes[: len(self.one.which_K)])
        found: FloatArray = repeated(self.one.transfer_s(each), self.kinds)
        return found
