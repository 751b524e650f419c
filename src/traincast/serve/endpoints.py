"""What can be asked: each endpoint is a function of a record and a worker, which returns a record.

The server makes routes and their description of this list; its modules load what they need when they are called, so
that the server stays small.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from traincast.serve import (
    about,
    advices,
    checks,
    comparisons,
    examples,
    explanations,
    exports,
    forecasts,
    plans,
    readings,
    timelines,
)


class Endpoint(Struct, frozen=True):
    """One thing that can be asked."""

    name: str
    """Its path below ``/api/``."""
    run: Callable[[Any, Any], Any]
    takes: type
    answers: Any
    slow: bool = False
    """Whether it takes seconds, and quick ones must not wait for it."""
    long: bool = False
    """Whether it is a task: it answers with an id at once, and tells how far it is."""

    @property
    def text(self) -> str:
        """What it does, in a line."""
        return (self.run.__doc__ or "").strip().splitlines()[0]

    def decode(self, body: bytes) -> Any:  # noqa: ANN401
        """Return what it takes, of JSON.

        Raises
        ------
        msgspec.ValidationError
            If it is something else.
        """
        return msgspec.json.decode(body or b"{}", type=self.takes)


def _endpoint(run: Callable[[Any, Any], Any], *, slow: bool = False, long: bool = False) -> Endpoint:
    hints = get_type_hints(run, localns={"Workbench": object})
    return Endpoint(run.__name__, run, next(iter(hints.values())), hints["return"], slow, long)


def _by_name(endpoints: Iterable[Endpoint]) -> Mapping[str, Endpoint]:
    return MappingProxyType({each.name: each for each in endpoints})


Run = Callable[[Any, Any], Any]
_QUICK: tuple[Run, ...] = (
    *(about.about, examples.examples, forecasts.forecast, readings.read, exports.export),
    *(comparisons.compare, comparisons.scaling, comparisons.whatif, timelines.timeline),
)
_SLOW: tuple[Run, ...] = (advices.advice, advices.assumptions, plans.why, checks.check)
_TASKS: tuple[Run, ...] = (plans.plan, explanations.explain)
ENDPOINTS = _by_name(
    [
        *map(_endpoint, _QUICK),
        *(_endpoint(each, slow=True) for each in _SLOW),
        *(_endpoint(each, long=True) for each in _TASKS),
    ]
)
"""All of them by name."""
