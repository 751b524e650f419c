"""The files of a plan: the document, a table, a picture, and the best layout in the words of what runs it."""

import re
from html import escape
from pathlib import Path

from traincast.plan.answer import Plan
from traincast.plan.several import Plans
from traincast.report.exports import exports
from traincast.report.files import write_files
from traincast.report.json import encode, plan_to_dict
from traincast.report.plain import csv_line

_COLUMNS = (
    *("gpus", "tp", "pp", "vpp", "cp", "dp", "ep", "etp", "micro_batch", "microbatches", "schedule"),
    *("sequence_parallel", "zero", "shard", "reshard_after_forward"),
    *("recompute", "recompute_layers", "recompute_method", "recompute_modules", "overlap_grad_reduce"),
    *("overlap_param_gather", "overlap_tp", "precision", "cp_kind", "moe_dispatcher"),
    *("offload_optimizer", "offload_activations"),
)
_FIGURES = (*("step_s", "screened_s", "tokens_per_s", "peak_bytes", "probability", "regret"),)
_RUN = ("tokens", "days", "gpu_hours", "cost", "energy_mwh", "co2_t")
_SIZE = (720, 440)
_EDGE = 64
_GIB = 2**30


def write_plan(plan: Plan | Plans, out: Path) -> list[Path]:
    """Write the files of a plan into a folder, all of them or none; those that are there are replaced."""
    texts = {"plan.csv": plan_csv(plan), "plan.svg": plan_svg(plan)}
    if isinstance(plan, Plan):
        texts |= _files_of(plan, "best")
    else:
        for one in plan.plans:
            case = re.sub(r"[^\w.-]+", "-", f"{one.model}_{one.cluster}_{one.gpus}")
            texts |= _files_of(one, case)
    files = [("plan.json", [encode(plan_to_dict(plan))]), *((name, [text.encode()]) for name, text in texts.items())]
    return write_files(out, files, force=True)


def _files_of(plan: Plan, stem: str) -> dict[str, str]:
    """Return the files of a plan's best layout by name; one of them says what cannot be written, and why."""
    found = list(exports(plan, plan.best[0]))
    texts = {f"{stem}.{each.name}": each.text for each in found if each.text is not None}
    missing = [f"{stem}.{each.name} is not written: {each.why_not}\n" for each in found if each.text is None]
    return texts | ({f"{stem}.not-written.txt": "".join(missing)} if missing else {})


def plan_csv(plan: Plan | Plans) -> str:
    """Return the layouts of a plan as a table, one a line."""
    lines = [csv_line(("model", "cluster", *_COLUMNS, *_FIGURES, *_RUN, "mfu", "tied", "pareto", "limited_by"))]
    kept = {each.identity for each in plan.pareto}
    for each in plan.shown:
        layout = [_cell(getattr(each.layout, name)) for name in _COLUMNS]
        figures = [_cell(getattr(each, name)) for name in _FIGURES]
        run = [_cell(getattr(each.training, name, None)) for name in _RUN]
        limit = next((part for part, _ in each.limits), "")
        marks = (int(each.tied), int(each.identity in kept), limit)
        lines.append(csv_line((each.model, each.cluster, *layout, *figures, *run, _cell(each.result.mfu), *marks)))
    return "".join(f"{line}\n" for line in lines)


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else value


def _title(plan: Plan | Plans) -> str:
    """Return what a picture is of."""
    cases = (plan,) if isinstance(plan, Plan) else plan.plans
    models, clusters = (
        ", ".join(dict.fromkeys(names)) for names in zip(*((c.model, c.cluster) for c in cases), strict=True)
    )
    counts = sorted({case.gpus for case in cases})
    gpus = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{models} on {gpus} GPUs of {clusters}"


def plan_svg(plan: Plan | Plans) -> str:
    """Return a picture of the step of every layout against its memory, the Pareto set joined by a line.

    Where other things than step and memory are traded, too, its layouts are marked and not joined.
    """
    shown, kept = plan.shown, {each.identity for each in plan.pareto}
    memory, steps = [each.peak_bytes / _GIB for each in shown], [each.step_s for each in shown]
    across, up = _Axis(memory, _SIZE[0], turned=False), _Axis(steps, _SIZE[1], turned=True)
    marks = []
    if isinstance(plan, Plan):
        line = " ".join(f"{across.at(each.peak_bytes / _GIB)},{up.at(each.step_s)}" for each in plan.pareto)
        marks.append(f'<polyline points="{line}" fill="none" stroke="#2a7"/>')
    for each in shown:
        colour, size = ("#2a7", 5) if each.identity in kept else ("#888", 3)
        colour = "#d22" if isinstance(plan, Plan) and each is plan.best[0] else colour
        at = f'cx="{across.at(each.peak_bytes / _GIB)}" cy="{up.at(each.step_s)}"'
        where = f"{each.model} on {each.layout.gpus:,} GPUs of {each.cluster}"
        title = escape(f"{where}, {each.layout.text}: {each.step_s:.4g} s, {each.peak_bytes / _GIB:.4g} GiB")
        marks.append(f'<circle {at} r="{size}" fill="{colour}"><title>{title}</title></circle>')
    below, beside = _SIZE[1] - _EDGE + 20, _EDGE - 8
    marks += [
        f'<text x="{across.at(each)}" y="{below}" text-anchor="middle">{each:.4g}</text>' for each in across.ticks()
    ]
    marks += [f'<text x="{beside}" y="{up.at(each)}" text-anchor="end">{each:.4g}</text>' for each in up.ticks()]
    middle = _SIZE[0] / 2
    marks.append(f'<text x="{middle}" y="{_SIZE[1] - 16}" text-anchor="middle">memory of the fullest GPU, GiB</text>')
    title = escape(f"{_title(plan)}: step, s")
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
