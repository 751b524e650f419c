"""Steps of Megatron-LM's functional tests, forecast from their flags as a user would paste them.

    python -m judges.golden

Tiny models on one or two nodes whose steps the host decides: what it launches, and how fast. Each row's flags go
through `traincast.dialects`; nothing else is known of a run but its GPU and how many there are.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

import traincast
from datafiles import table_path
from judges.board import Board, board_of
from traincast.dialects import draft_like
from traincast.errors import TraincastError

CLUSTERS = {"A100": "a100", "H100": "h100", "GB200": "gb200"}
"""GPU to the cluster it is forecast on: nodes of 8 that InfiniBand joins, or an NVLink domain of 72."""

ASKED = {"median": 22.0, "bias": 8.0, "inside": 85.0}
SUBJECT = "golden runs of Megatron-LM"
_RAMP_UP = "batch ramp-up or schedule"


class Forecast(NamedTuple):
    """What became of one row."""

    row: Mapping[str, str]
    accepted: bool
    """Whether its flags make a job."""
    skipped: str = ""
    """Why its step is not held against the measured one; empty where it is."""
    step_s: float = 0.0
    inside: bool = False

    @property
    def measured_s(self) -> float:
        """The median of its steady steps."""
        return float(self.row["step_median_s"])


@cache
def forecasts() -> tuple[Forecast, ...]:
    """Return what becomes of every row."""
    path = table_path("megatron_golden.csv")
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return tuple(map(forecast, csv.DictReader(text.splitlines())))


def forecast(row: Mapping[str, str]) -> Forecast:
    """Return the forecast of a row, or why there is none."""
    gpu, gpus = row["gpu"] or "A100", int(row["num_gpus"] or 0)
    try:
        # Where a row does not say its GPUs only the flags are judged, by the job that they make of enough GPUs.
        draft = draft_like("megatron", row["flags"].split())
        skipped = _skipped(row)
        if skipped:
            return Forecast(row, accepted=True, skipped=skipped)
        result = traincast.predict(draft, CLUSTERS[gpu], gpus=gpus, suggest=False, allow_oom=True)
    except TraincastError as error:
        return Forecast(row, accepted=False, skipped=f"refused: {error}")
    interval, step_s = result.interval, float(row["step_median_s"])
    inside = interval is not None and interval.low_s <= step_s <= interval.high_s
    return Forecast(row, accepted=True, step_s=result.iteration_time_s, inside=inside)


def _skipped(row: Mapping[str, str]) -> str:
    """Return why the step of a row says nothing about a forecast; empty where it does."""
    if not row["gpu"]:
        return "its GPU is not known"
    if not row["num_gpus"]:
        return "its number of GPUs is not known"
    if _RAMP_UP in row["notes"]:
        return "its batch grows while it runs"
    if row["model_kind"] == "multimodal":
        return "models of images are not described"
    return ""


def boards() -> list[Board]:
    """Return the share of flag lines that are accepted, and errors of steps: all, by GPU and by kind of model."""
    found = forecasts()
    accepted = {"accepted": round(100 * sum(each.accepted for each in found) / len(found), 2)}
    judged = [each for each in found if not each.skipped]
    result = [Board(SUBJECT, "flag lines", len(found), accepted, {"accepted": 97.0}), _board("steps", judged)]
    result[-1] = result[-1]._replace(asked=ASKED)
    for column in ("gpu", "model_kind"):
        for name in sorted({each.row[column] for each in judged}):
            result += [_board(f"steps, {name}", (each for each in judged if each.row[column] == name))]
    return result


def _board(name: str, some: Iterable[Forecast]) -> Board:
    rows = list(some)
    steps, measured = [each.step_s for each in rows], [each.measured_s for each in rows]
    return board_of(SUBJECT, name, steps, measured, [each.inside for each in rows])


def main() -> None:
    """Print the boards, and how many rows are skipped for which reason."""
    for board in boards():
        print(f"{board.name:20} {board.rows:4} {board.figures}")
    for reason, count in Counter(each.skipped for each in forecasts() if each.skipped).most_common():
        print(f"{count:4} {reason}")


if __name__ == "__main__":
    main()
