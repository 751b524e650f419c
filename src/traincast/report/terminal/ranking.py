"""Whether forecasts choose the right layout, for people."""

from traincast.calibration.ranking import MANY, RankedGroup, RankedLayout, Ranking, RankingFigures
from traincast.report.terminal import layout as ui
from traincast.units import format_time

_SHOWN = 8

_SOURCES: tuple[ui.Column[RankingFigures], ...] = (
    ui.column("", "source", words=True),
    ui.column("groups", "groups", ui.count),
    ui.column("mean", "mean_regret", ui.error),
    ui.column("random", "random_regret", ui.error),
    ui.column("p90", "p90_regret", ui.error),
    ui.column("worst", "worst_regret", ui.error),
    ui.Column(
        "rank corr.", lambda each: "-" if each.spearman is None else f"{each.spearman:.3f} of {each.large_groups}"
    ),
    ui.column("at most", "ceiling", "{:.3f}".format),
    ui.column("crashed", "crashed_choices", ui.count, spare=1),
)


def _step(layout: RankedLayout) -> str:
    return "-" if layout.measured_s is None else format_time(layout.measured_s)


_GROUPS: tuple[ui.Column[RankedGroup], ...] = (
    ui.column("regret", "regret", ui.error),
    ui.Column("group", lambda each: f"{each.name} ({len(each.layouts)} layouts)", words=True),
    ui.column("choice", "chosen.name", words=True),
    ui.column("measured", "chosen", _step),
    ui.column("best", "best.name", words=True),
    ui.column("measured", "best", _step),
)


@ui.printed
def print_ranking(ranking: Ranking) -> ui.View:
    """Print the regret of choosing by forecast, by source, and the groups where it is the largest."""
    total = ranking.total
    yield ui.text(f"Regret of the choice by forecast: mean {ui.error(total.mean_regret)}", "bold")
    left = f"; {ui.number(ranking.left_out, 'row')} left out as asked" if ranking.left_out else ""
    yield ui.text(
        f"{ranking.path}: {ui.number(total.groups, 'group')} of layouts that differ in nothing else{left}; "
        "regret is how much longer the choice was measured than the best"
    )
    yield ui.heading("Regret")
    yield ui.table(_SOURCES, [total, *ranking.sources])
    yield ui.indented(
        "random: mean regret of choosing at random among the same layouts; "
        f"rank correlation: mean of how many groups with at least {MANY} layouts that ran, and what the noise of "
        "repeats allows; "
        "crashed: groups whose first choice did not run, so that the next one counts"
    )
    if ranking.sessions:
        sessions = ui.number(ranking.sessions, "session")
        yield ui.indented(f"{sessions} told apart: steps as at their mean pace, by the layouts that ran in several")
    yield from ui.section("Largest regrets", _GROUPS, [each for each in ranking.groups[:_SHOWN] if each.regret > 0])
    if ranking.skipped:
        first = ranking.skipped[0]
        yield ui.heading("Skipped")
        yield ui.indented(f"{ui.number(len(ranking.skipped), 'row')} without a forecast; {first.id}: {first.reason}")
