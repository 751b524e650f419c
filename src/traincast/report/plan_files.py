"""The files of a plan: the document, a table, a page to explore, and the best layout in the words of what runs it."""

import re
from pathlib import Path

from traincast.planning.answer import Plan
from traincast.planning.layout import COLUMNS, software_text
from traincast.planning.several import Plans
from traincast.report.explorer.points import plan_page
from traincast.report.exports import exports
from traincast.report.files import write_files
from traincast.report.json import encode, plan_to_dict
from traincast.report.plain import csv_line

_FIGURES = (*("step_s", "screened_s", "tokens_per_s", "peak_bytes", "probability", "regret"),)
_RUN = ("tokens", "days", "gpu_hours", "cost", "energy_mwh", "co2_t")


def write_plan(plan: Plan | Plans, out: Path) -> list[Path]:
    """Write the files of a plan into a folder, all of them or none; those that are there are replaced."""
    layouts: dict[str, str] = {}
    if isinstance(plan, Plan):
        layouts |= _files_of(plan, "best")
    else:
        for one in plan.plans:
            case = re.sub(r"[^\w.-]+", "-", f"{one.model}_{one.cluster}_{one.gpus}")
            layouts |= _files_of(one, case)
    texts = {"plan.csv": plan_csv(plan), "plan.html": plan_page(plan, _title(plan), layouts), **layouts}
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
    lines = [
        csv_line(("model", "cluster", *COLUMNS, "software", *_FIGURES, *_RUN, "mfu", "tied", "pareto", "limited_by"))
    ]
    kept = {each.identity for each in plan.pareto}
    for each in plan.shown:
        layout = [*(_cell(getattr(each.layout, name)) for name in COLUMNS), software_text(each.layout)]
        figures = [_cell(getattr(each, name)) for name in _FIGURES]
        run = [_cell(getattr(each.training, name, None)) for name in _RUN]
        limit = next((part for part, _ in each.limits), "")
        marks = (int(each.tied), int(each.identity in kept), limit)
        lines.append(csv_line((each.model, each.cluster, *layout, *figures, *run, _cell(each.result.mfu), *marks)))
    return "".join(f"{line}\n" for line in lines)


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else value


def _title(plan: Plan | Plans) -> str:
    """Return what a page is of."""
    cases = (plan,) if isinstance(plan, Plan) else plan.plans
    models, clusters = (
        ", ".join(dict.fromkeys(names)) for names in zip(*((c.model, c.cluster) for c in cases), strict=True)
    )
    counts = sorted({case.gpus for case in cases})
    gpus = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{models} on {gpus} GPUs of {clusters}"
