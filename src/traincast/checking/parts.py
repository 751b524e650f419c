"""What each part of a step would have to take if it alone made the step as long as it was measured."""

from collections.abc import Mapping

from msgspec import Struct

from traincast.checking.expected import Expected

LEAST = 0.001
"""Share of a step below which a part is not told."""


class NeededPart(Struct, frozen=True, kw_only=True):
    """One part of the breakdown."""

    part: str
    expected_s: float
    needed_s: float | None
    """What it would have to take; None where it cannot: it would have to be shorter than nothing."""
    factor: float | None
    """The same over what is expected of it."""


def parts_of_step(breakdown_s: Mapping[str, float], expected: Expected, measured_s: float) -> tuple[NeededPart, ...]:
    """Return the parts of the expected step, the largest first.

    A step that is expected by a good run is divided as the forecast is.
    """
    scale = expected.step_s / sum(breakdown_s.values())
    excess_s = measured_s - expected.step_s
    found = []
    for name, time_s in breakdown_s.items():
        expected_s = scale * time_s
        if expected_s < LEAST * expected.step_s:
            continue
        needed_s = expected_s + excess_s
        possible = needed_s > 0
        found.append(
            NeededPart(
                part=name,
                expected_s=expected_s,
                needed_s=needed_s if possible else None,
                factor=needed_s / expected_s if possible else None,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.expected_s))
