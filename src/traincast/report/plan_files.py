"""The files of a plan: the document, a table, a picture, and the best layout in the words of what runs it."""

import csv
import io
from html import escape
from pathlib import Path

from traincast.plan.answer import Choice, Plan
from traincast.report.files import write_files
from traincast.report.json import encode, plan_to_dict
from traincast.report.layouts import LAYOUT_FILES

_COLUMNS = (
    *("gpus", "tp", "pp", "vpp", "cp", "dp", "ep", "etp", "micro_batch", "microbatches", "schedule"),
    *("sequence_parallel", "zero", "shard", "recompute", "recompute_layers", "recompute_method", "recompute_modules"),
    *("overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "precision", "cp_kind", "moe_dispatcher"),
)
_SIZE = (720, 440)
_EDGE = 64
_GIB = 2**30


def write_plan(plan: Plan, out: Path) -> list[Path]:
    """Write the files of a plan into a folder, all of them or none; those that are there are replaced."""
    texts = {name: write(plan, plan.best[0]) for name, write in LAYOUT_FILES.items()}
    texts |= {"plan.csv": plan_csv(plan), "plan.svg": plan_svg(plan)}
    files = [("plan.json", [encode(plan_to_dict(plan))]), *((name, [text.encode()]) for name, text in texts.items())]
    return write_files(out, files, force=True)


def plan_csv(plan: Plan) -> str:
    """Return the layouts of a plan as a table, one a line."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow((*_COLUMNS, "step_s", "screened_s", "peak_bytes", "mfu", "probability", "regret", "tied", "pareto"))
    for each in plan.best:
        layout = [_cell(getattr(each.layout, name)) for name in _COLUMNS]
        figures = (each.step_s, each.screened_s, each.peak_bytes, each.result.mfu, each.probability, each.regret)
        rows.writerow((*layout, *figures, int(each.tied), int(_in(each, plan))))
    return stream.getvalue()


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else value


def _in(choice: Choice, plan: Plan) -> bool:
    return any(each.layout == choice.layout for each in plan.pareto)


def plan_svg(plan: Plan) -> str:
    """Return a picture of the step of every layout against its memory, the Pareto set joined by a line."""
    shown = [*plan.best, *(each for each in plan.pareto if all(each.layout != one.layout for one in plan.best))]
    memory, steps = [each.peak_bytes / _GIB for each in shown], [each.step_s for each in shown]
    across, up = _Axis(memory, _SIZE[0], turned=False), _Axis(steps, _SIZE[1], turned=True)
    marks = []
    line = " ".join(f"{across.at(each.peak_bytes / _GIB)},{up.at(each.step_s)}" for each in plan.pareto)
    marks.append(f'<polyline points="{line}" fill="none" stroke="#2a7"/>')
    for each in shown:
        colour, size = ("#2a7", 5) if _in(each, plan) else ("#888", 3)
        colour = "#d22" if each is plan.best[0] else colour
        at = f'cx="{across.at(each.peak_bytes / _GIB)}" cy="{up.at(each.step_s)}"'
        title = escape(f"{each.layout.text}: {each.step_s:.4g} s, {each.peak_bytes / _GIB:.4g} GiB")
        marks.append(f'<circle {at} r="{size}" fill="{colour}"><title>{title}</title></circle>')
    below, beside = _SIZE[1] - _EDGE + 20, _EDGE - 8
    marks += [
        f'<text x="{across.at(each)}" y="{below}" text-anchor="middle">{each:.4g}</text>' for each in across.ticks()
    ]
    marks += [f'<text x="{beside}" y="{up.at(each)}" text-anchor="end">{each:.4g}</text>' for each in up.ticks()]
    middle = _SIZE[0] / 2
    marks.append(f'<text x="{middle}" y="{_SIZE[1] - 16}" text-anchor="middle">memory of the fullest GPU, GiB</text>')
    title = escape(f"{plan.model} on {plan.gpus:,} GPUs of {plan.cluster}: step, s")
    marks.append(f'<text x="{middle}" y="24" text-anchor="middle">{title}</text>')
    body = "\n".join(marks)
    box = f'viewBox="0 0 {_SIZE[0]} {_SIZE[1]}" font-family="sans-serif" font-size="12"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n{ground}\n{body}\n</svg>\n'


class _Axis:
    """From values to places of a picture."""

    def __init__(self, values: list[float], length: int, *, turned: bool) -> None:
        spread = (max(values) - min(values)) or abs(max(values)) or 1.0
        self.low, self.high = min(values) - 0.05 * spread, max(values) + 0.05 * spread
        self.length, self.turned = length, turned

    def at(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self.low) / (self.high - self.low)
        inside = self.length - 2 * _EDGE
        return round(_EDGE + inside * (1 - share if self.turned else share), 1)

    def ticks(self) -> list[float]:
        """Return values to write at the axis."""
        return [self.low + (self.high - self.low) * place / 4 for place in range(5)]
