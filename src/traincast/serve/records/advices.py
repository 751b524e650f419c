"""What to do about a forecast: changes with what they save, and what its assumptions may cost."""

from msgspec import Struct

from traincast.serve.records.values import Shown, Value


class Saving(Struct, frozen=True, kw_only=True):
    """What a change saves, in seconds, with its 90 % interval."""

    value: float
    text: str
    low: float | None = None
    high: float | None = None
    between: str = ""
    """The interval in words."""


class AdviceShown(Struct, frozen=True, kw_only=True):
    """A change that would make the step shorter."""

    text: str
    switch: str
    """As the framework is told."""
    words_of: str
    """Whose words these are."""
    taken: bool
    """Whether it is one of those to make, in order, each over the ones before it."""
    saving: Saving
    alone: Shown
    """What it saves by itself."""
    step: Shown
    """With it and those before it."""
    memory: str
    needs: str
    changes_numerics: str
    """What it changes in the numbers that a model learns from; empty: nothing."""
    confidence: Shown
    """Chance that it saves anything."""
    notes: tuple[str, ...]
    apply: dict[str, Value]
    """Fields of the job with their new values; null is left open."""


class SuggestionShown(Struct, frozen=True, kw_only=True):
    """What better hardware or code would save."""

    change: str
    """As a what-if takes it."""
    text: str
    saving: Saving


class AdviceAnswer(Struct, frozen=True, kw_only=True):
    """What would help most."""

    advice: tuple[AdviceShown, ...]
    what_if: tuple[SuggestionShown, ...]


class OtherValue(Struct, frozen=True, kw_only=True):
    """A forecast with another value of what was assumed."""

    value: Value
    step: Shown | None
    difference: Shown | None
    """To the step as it is."""
    why_not: str = ""
    """Why there is none."""


class AssumptionShown(Struct, frozen=True, kw_only=True):
    """An assumption, and what else it could be."""

    code: str
    text: str
    field: str
    value: Value
    """What was assumed."""
    may_cost: Shown
    """Largest difference that another value makes, as a share of the step."""
    others: tuple[OtherValue, ...]


class AssumptionsAnswer(Struct, frozen=True, kw_only=True):
    """What the assumptions of a forecast may cost."""

    assumptions: tuple[AssumptionShown, ...]
