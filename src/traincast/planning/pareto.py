"""What layouts trade for each other: the Pareto set of tokens per second, memory, GPUs, cost and energy."""

from collections.abc import Sequence

from traincast.planning.answer import Choice

Figures = tuple[float, ...]


def pareto(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the layouts that no other one of their model beats, the fastest of each model first.

    One beats another if it is no worse in the time of a token, the memory of the fullest GPU, the number of GPUs, and
    the cost and the energy of a token, and better in one of them. Cost and energy count where all layouts have them.
    Of equal ones the first stays.
    """
    models = dict.fromkeys(each.model for each in choices)
    return tuple(each for model in models for each in _of_one([one for one in choices if one.model == model]))


def _of_one(choices: Sequence[Choice]) -> list[Choice]:
    found: list[tuple[Figures, Choice]] = []
    # No layout is beaten by one that comes after it in the order of its figures.
    for figures, choice in sorted(zip(_figures(choices), choices, strict=True), key=lambda each: each[0]):
        if not any(all(one <= other for one, other in zip(kept, figures, strict=True)) for kept, _ in found):
            found.append((figures, choice))
    return [choice for _, choice in found]


def _figures(choices: Sequence[Choice]) -> list[Figures]:
    """Return what is better if it is less, of each layout."""
    columns: list[list[float]] = [
        [1 / each.tokens_per_s for each in choices],
        [each.peak_bytes for each in choices],
        [float(each.layout.gpus) for each in choices],
    ]
    for name in ("cost", "energy_mwh"):
        per_token = [figure for each in choices if (figure := each.per_token(name)) is not None]
        columns += [per_token] if len(per_token) == len(choices) else []
    return list(zip(*columns, strict=True))
