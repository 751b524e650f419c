"""Switch mechanisms off one by one, fit again, and say what that costs on each board of published runs.

    python studies/ablation.py [--data DIR] [--most 1] [--write]

Each mechanism is taken out of the forecasts of all fitted runs; the factors are then fitted again without the family of
each run in turn, to the first order in their logarithms, so that a figure is of runs that the fit has not seen. A
second table is of the runs alone that a mechanism moves, with those that are fitted to nowhere: a board's median does
not tell what few of its runs have. With ``--write`` both go between the two markers of `docs/ACCURACY.md`; without it,
they are printed. Every mechanism takes one simulation of the runs that it may change: half a minute to two minutes on
two idle cores.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from datafiles import DATA, table_path
from published.reading import read_published
from traincast.calibration.kinds.runs import BOARD, labels_of
from traincast.calibration.run_factors import Forecast, factors_of, forecast_runs, representatives, sample_of
from traincast.calibration.runs import MeasuredRun, is_fitted, read_runs
from traincast.calibration.tables import MeasurementTable
from traincast.estimate.factors import shipped_factors
from traincast.hardware.dtypes import EIGHT_BIT

PAGE = Path(__file__).parent.parent / "docs" / "ACCURACY.md"
BEGIN, END = "<!-- ablation -->\n", "<!-- end of ablation -->\n"
MOVED = 0.01
"""Change of a step from which on a mechanism moves it."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism, and how it is switched off."""

    name: str
    instead: tuple[tuple[str, Callable[..., Any]], ...] = ()
    """Functions, by module and name, and what stands in for them."""
    request: tuple[tuple[str, Any], ...] = ()
    """Fields of the job, and what they are then."""
    recipes: bool = True
    """Whether the settings of recipes are read."""
    changes: Callable[[MeasuredRun], bool] = lambda run: True  # noqa: ARG005 any run
    """Which runs it may change; others are as they are with it."""


def _as_they_are(self: object, host: object, phase: object, rows: list[Any]) -> list[Any]:  # noqa: ARG001
    return rows


def _no_casts(*_: object, **__: object) -> Any:  # noqa: ANN401 of the module that is patched
    return import_module("traincast.lowering.casts").Casts()


def _nothing_held(program: Any, held: int, of_gpu: int | None) -> Any:  # noqa: ANN401, ARG001 as the function it replaces
    return np.zeros(len(program.ops))


def _has_experts(run: MeasuredRun) -> bool:
    return run.request.model.experts is not None


def _has_narrow_gemms(run: MeasuredRun) -> bool:
    return run.request.precision in EIGHT_BIT


def _has_graphs(run: MeasuredRun) -> bool:
    # As it was published: the request may be without them already.
    said = (run.cells.get(name, "") for name in ("cuda_graphs", "cuda_graph_scope", "cuda_graph_impl"))
    return any(each.lower() not in ("", "none", "0", "false", "no", "off") for each in said)


BUILD = "traincast.lowering"
MECHANISMS = (
    Mechanism("as it is"),
    Mechanism("launches of the host", ((f"{BUILD}.emit:Emitter.hosted", _as_they_are),)),
    Mechanism(
        "casts to 8 and 4 bits",
        (
            (f"{BUILD}.work:casts_of", _no_casts),
            (f"{BUILD}.launches:casts_of", _no_casts),
            (f"{BUILD}.step:weight_casts", lambda *_, **__: ()),
        ),
        changes=_has_narrow_gemms,
    ),
    Mechanism(
        "CUDA graphs",
        request=(("cuda_graphs", False), ("cuda_graph_impl", None), ("cuda_graph_scope", None)),
        changes=_has_graphs,
    ),
    Mechanism(
        "overlap of exchanges with experts",
        request=(("moe_a2a_overlap", False), ("moe_shared_expert_overlap", False)),
        changes=_has_experts,
    ),
    Mechanism("kinds of dispatchers", request=(("moe_dispatcher", "alltoall"),), changes=_has_experts),
    Mechanism(
        "multiprocessors that exchanges hold",
        (("traincast.simulation.step:held_multiprocessors", _nothing_held),),
        changes=_has_experts,
    ),
    Mechanism("routing that nothing balances", request=(("moe_routing", None),), changes=_has_experts),
    Mechanism("settings of recipes", recipes=False),
)


@contextmanager
def switched_off(mechanism: Mechanism) -> Iterator[None]:
    """Put what stands in for a mechanism's functions in their place, and take it out again."""
    undone: list[tuple[Any, str, Any]] = []
    for path, function in mechanism.instead:
        module, _, name = path.partition(":")
        owner: Any = import_module(module)
        *outer, last = name.split(".")
        for each in outer:
            owner = getattr(owner, each)
        undone.append((owner, last, getattr(owner, last)))
        setattr(owner, last, function)
    try:
        yield
    finally:
        for owner, last, was in undone:
            setattr(owner, last, was)


def runs_of(
    table: MeasurementTable, mechanism: Mechanism, most: int
) -> tuple[list[MeasuredRun], "np.typing.NDArray[np.float64]"]:
    """Return the runs that are fitted to, with their weights, and with what a mechanism says of their jobs."""
    fitted = [run for run in read_runs(table).rows if run.measured_s is not None and is_fitted(run)]
    rows, weight_I = representatives(fitted, most)
    return _as_said(rows, mechanism), weight_I


def _as_said(rows: Sequence[MeasuredRun], mechanism: Mechanism) -> list[MeasuredRun]:
    said = dict(mechanism.request)
    return [
        replace(run, request=replace(run.request, **said)) if said and mechanism.changes(run) else run for run in rows
    ]


def unfitted_runs(table: MeasurementTable, mechanism: Mechanism) -> list[MeasuredRun]:
    """Return the pretraining runs that no fit sees, with what a mechanism says of their jobs."""
    rows = [
        run
        for run in read_runs(table).rows
        if run.measured_s is not None and not is_fitted(run) and run.groups.task == "pretrain"
    ]
    return _as_said(rows, mechanism)


def forecasts_without(mechanism: Mechanism, rows: Sequence[MeasuredRun], before: dict[str, Forecast]) -> list[Forecast]:
    """Return the forecasts of runs with a mechanism switched off; `before` are those with it, by a run's id."""
    again = [run for run in rows if run.id not in before or mechanism.changes(run)]
    with switched_off(mechanism):
        made = forecast_runs(again, [shipped_factors()] * len(again))
    found = before | {run.id: forecast for run, forecast in zip(again, made, strict=True)}
    return [found[run.id] for run in rows]


def with_table(page: str, text: str) -> str:
    """Return the page with a table between its two markers.

    Raises
    ------
    ValueError
        If it has not both.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{text}{END}{after}"


def held_out_errors(
    rows: Sequence[MeasuredRun], forecasts: Sequence[Forecast], weight_I: "np.typing.NDArray[np.float64]"
) -> "np.typing.NDArray[np.float64]":
    """Return the error of each run with factors that have not seen its family, to the first order; NaN without one."""
    sample = sample_of(rows, forecasts, shipped_factors(), weight_I)
    families = np.array([row.groups.family for row in rows])
    found = np.full(len(rows), np.nan)
    for family in sorted(set(families)):
        mine_I = families == family
        table = factors_of(sample.without(mine_I))
        moved_K = np.array([np.log(table.factors[key].factor) if key in table.factors else 0.0 for key in sample.keys])
        found[mine_I] = sample.slope_IK[mine_I] @ (moved_K - sample.current_K) - sample.residual_I[mine_I]
    known = np.array([each.step_s is not None for each in forecasts])
    return np.where(known, np.expm1(found), np.nan)


def figures_of(error_I: "np.typing.NDArray[np.float64]") -> tuple[int, float, float]:
    """Return how many runs were forecast, with the median and the 90th percentile of their errors."""
    median, p90 = (float(np.nanquantile(error_I, share)) for share in (0.5, 0.9))
    return int(np.isfinite(error_I).sum()), median, p90


def table_of(figures: dict[str, dict[str, tuple[int, float, float]]]) -> str:
    """Return the figures as a table: a line for each mechanism, a column for each board."""
    boards = sorted({board for of_board in figures.values() for board in of_board})
    lines = [
        "| without | " + " | ".join(boards) + " |",
        "|---|" + "---|" * len(boards),
    ]
    for name, of_board in figures.items():
        cells = [f"{of_board[each][1]:.1%}, {of_board[each][2]:.1%}".replace("%", " %") for each in boards]
        lines.append(f"| {'(nothing)' if name == MECHANISMS[0].name else name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


class Forecasts(NamedTuple):
    """What is forecast of runs, and how far off it is where the fit has not seen them, by a run's id."""

    step_s: dict[str, float]
    error: dict[str, float]

    @classmethod
    def from_rows(
        cls, rows: Sequence[MeasuredRun], forecasts: Sequence[Forecast], error_I: Sequence[float]
    ) -> "Forecasts":
        """Return them; runs without a forecast are left out."""
        known = [
            (run.id, each.step_s, float(error))
            for run, each, error in zip(rows, forecasts, error_I, strict=True)
            if each.step_s is not None
        ]
        return cls({name: step_s for name, step_s, _ in known}, {name: error for name, _, error in known})

    def moved(self, without: "Forecasts") -> tuple[int, float, float]:
        """Return how many runs move when something is switched off, and their median error with and without it."""
        both = self.step_s.keys() & without.step_s.keys()
        ids = [each for each in both if abs(np.log(without.step_s[each] / self.step_s[each])) > MOVED]
        with_it, without_it = ([abs(of.error[each]) for each in ids] for of in (self, without))
        return (len(ids), float(np.median(with_it)), float(np.median(without_it))) if ids else (0, np.nan, np.nan)


def table_of_moved(moved: dict[str, tuple[tuple[int, float, float], tuple[int, float, float]]]) -> str:
    """Return as a table how many runs each mechanism moves, and their errors with and without it."""
    lines = [
        "| mechanism | fitted runs that it moves | with it | without | runs not fitted to | with it | without |",
        "|---|" + "---|" * 6,
    ]
    for name, kinds in moved.items():
        cells = [cell for count, *errors in kinds for cell in (str(count), *(_share(each) for each in errors))]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _share(error: float) -> str:
    return "" if np.isnan(error) else f"{error:.1%}".replace("%", " %")


def main() -> None:
    """Switch off, fit, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with measured_training_runs.csv")
    parser.add_argument("--most", type=int, default=1, help="runs of each configuration that are simulated")
    parser.add_argument("--write", action="store_true", help="write the table into docs/ACCURACY.md")
    given = parser.parse_args()
    path, recipes = (table_path(name, given.data) for name in ("measured_training_runs.csv", "recipe_settings.csv"))
    tables = {True: read_published(path, recipes), False: read_published(path)}
    figures: dict[str, dict[str, tuple[int, float, float]]] = {}
    moved: dict[str, tuple[tuple[int, float, float], tuple[int, float, float]]] = {}
    as_is: dict[str, Forecast] = {}
    whole: tuple[Forecasts, Forecasts] | None = None
    for mechanism in MECHANISMS:
        rows, weight_I = runs_of(tables[mechanism.recipes], mechanism, given.most)
        others = unfitted_runs(tables[mechanism.recipes], mechanism)
        forecasts = forecasts_without(mechanism, [*rows, *others], as_is)
        as_is = as_is or {run.id: forecast for run, forecast in zip([*rows, *others], forecasts, strict=True)}
        forecasts, of_others = forecasts[: len(rows)], forecasts[len(rows) :]
        error_I = held_out_errors(rows, forecasts, weight_I)
        plain = [
            (each.step_s or np.nan) / (run.measured_s or np.nan) - 1
            for run, each in zip(others, of_others, strict=True)
        ]
        kinds = Forecasts.from_rows(rows, forecasts, error_I.tolist()), Forecasts.from_rows(others, of_others, plain)
        if whole is None:
            whole = kinds
        else:
            moved[mechanism.name] = whole[0].moved(kinds[0]), whole[1].moved(kinds[1])
            print(mechanism.name, moved[mechanism.name])
        error_I = np.abs(error_I)
        labels = np.array(labels_of(rows)[BOARD])
        figures[mechanism.name] = {board: figures_of(error_I[labels == board]) for board in sorted(set(labels))}
        print(mechanism.name, figures[mechanism.name])
        sys.stdout.flush()
    text = f"{table_of(figures)}\n{table_of_moved(moved)}"
    print(text)
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
