"""What else changes in a cluster with one of its numbers: one rule for what-ifs and files that build on another.

A number that was made from another keeps its ratio to it, unless it is given itself: what all ranks of a node get of
the network follows what one gets and how many there are, the links inside a node follow the datasheet's rate of them.
"""

from collections.abc import Mapping
from typing import Any

from traincast.hardware.cluster import Cluster
from traincast.hardware.from_datasheet import NIC_SHARE
from traincast.tables import Value

_NIC, _SIZE = "gpu.nic_bytes_per_s", "gpus_per_node"
_RATE, _NODE = "bandwidth_bytes_per_s", "node_bandwidth_bytes_per_s"
_LEAST_SHARE = 0.8
"""Less of a card's line rate than that is the rate of another card."""
_PARTS = (_NODE, "pair_bandwidth_bytes_per_s", "halves_bandwidth_bytes_per_s")

_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "gpu.bf16_dense_flops_per_s": ("gpu.fp16_dense_flops_per_s",),
    "gpu.hbm_bytes_per_s": ("gpu.copy_bytes_per_s",),
    "gpu.link_bytes_per_s": (f"intra.{_RATE}",),
    f"intra.{_RATE}": tuple(f"intra.{each}" for each in _PARTS),
    f"inter.{_RATE}": tuple(f"inter.{each}" for each in _PARTS),
    _SIZE: (f"inter.{_NODE}",),
}
"""Number to those that keep their ratio to it, in an order in which none comes after what follows from it."""


def followed(base: Cluster, said: Mapping[str, Value]) -> dict[str, Value]:
    """Return the numbers of a cluster that follow from those that are said of it, by field path, with their sources.

    A network card's line rate says what a rank gets of it, by the share that is reached now; the rest keeps its ratio.
    """
    found: dict[str, Value] = {}
    sources, ratios = dict(base.sources), {path: _ratio(base, path, value.value) for path, value in said.items()}
    if _NIC in said and f"inter.{_RATE}" not in said:
        rate = said[_NIC].value * _card_share(base)
        ratios[f"inter.{_RATE}"] = rate / base.inter.bandwidth_bytes_per_s
        if rate != base.inter.bandwidth_bytes_per_s:
            found[f"inter.{_RATE}"] = Value(rate, f"follows {_NIC}: {_card_share(base):.3g} of the card's line rate")
    for path, followers in _FOLLOWS.items():
        for each in followers if ratios.get(path, 1.0) != 1.0 else ():
            before = _number(base, each)
            # Another part has peaks of its own.
            if each in said or before is None or (each.startswith("gpu.fp16") and "gpu.name" in said):
                continue
            ratios[each] = ratios.get(each, 1.0) * ratios[path]
            why = f"follows {path}: {ratios[each]:.4g} times that of {base.name}"
            found[each] = Value(before * ratios[each], f"{why} ({sources.get(each, 'not specified')})")
    return found


def _card_share(base: Cluster) -> float:
    """Return what a rank gets of its card's line rate; the usual share where the links are of another card."""
    share = base.inter.bandwidth_bytes_per_s / (base.gpu.nic_bytes_per_s or base.inter.bandwidth_bytes_per_s * 2)
    return share if _LEAST_SHARE <= share <= 1 else NIC_SHARE


def described(base: Cluster, said: Mapping[str, Value]) -> str:
    """Describe how a cluster differs from another in some numbers; empty where it does not."""
    other = [path for path, (value, source) in said.items() if source is not None and value != _number(base, path)]
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    return f"as {base.name} but for {', '.join(other[:3])}{more}" if other else ""


def _ratio(base: Cluster, path: str, value: Any) -> float:  # noqa: ANN401
    """Return a number over what it was; 1 where it was none."""
    before = _number(base, path)
    return float(value / before) if before and isinstance(value, int | float) else 1.0


def _number(base: Cluster, path: str) -> float | None:
    section, dot, name = path.partition(".")
    value = getattr(getattr(base, section, None), name, None) if dot else getattr(base, section, None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
