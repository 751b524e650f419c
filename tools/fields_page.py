"""The page about all that a job may say, from its table: ``python tools/fields_page.py`` writes docs/fields.md."""

from pathlib import Path

from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS, GROUPS, JOB, Field, fields

PAGE = Path(__file__).parents[1] / "docs" / "fields.md"

_HEAD = """# All that a job may say

Every field of a job, by what it is about: a keyword of Python and a key of a [job file](jobs.md) under its own name,
and flags of the command line, of which the second is Megatron-LM's. `traincast init` writes them all into a file with
comments. What is left open is decided by the framework and listed among the assumptions of a forecast.

A [plan](plan.md) decides the fields marked "axis" (`--fix FIELD=A,B` holds one to some values), and `--max-FIELD N`
limits those marked "limited". "Needs" says what must hold for a field to have an effect; `replicas` are the
ranks with equal dense parameters, dp x cp. The list is made from the table `data/job/fields.csv` of the package.
"""
_COLUMNS = "| field | flags | takes | plan | needs | |\n|---|---|---|---|---|---|\n"

_TITLES = {
    "run": "The run",
    "parallelism": "Parallelism",
    "batch": "Batch",
    "pipeline": "Pipeline",
    "precision": "Precision",
    "kernels": "Kernels and CUDA graphs",
    "experts": "Experts",
    "recompute": "Recomputation",
    "offload": "Offload",
    "sharding": "Sharding and optimizer",
    "finetuning": "Fine-tuning",
}


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for group in GROUPS:
        rows = [_row(each) for each in fields(group=group) if JOB in each.of]
        parts.append(f"## {_TITLES[group]}\n\n{_COLUMNS}{''.join(rows)}")
    return "\n".join(parts)


def _row(field: Field) -> str:
    flags = " ".join(f"`{each}`" for each in field.flags)
    needs = ", ".join(f"`{each}`" for each in field.needs)
    plan = "limited" if field.axis == "limited" else "axis" if field.is_axis else ""
    cells = (f"`{field.name}`", flags, _takes(field), plan, needs, field.help.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |\n"


def _takes(field: Field) -> str:
    """Return what values a field takes."""
    choices = ", ".join(f"`{each}`" for each in choices_of(field))
    if field.takes == "names":
        return f"some of {choices}"
    if field.takes == "choice":
        return choices
    kinds = {"switch": "on or off", "text": "a text", "tokens": "tokens, such as 8k", "counts": "whole numbers"}
    kind = kinds.get(field.takes, "a number" if field.takes == "number" else "a whole number")
    if field.takes == "tokens":
        return kinds["tokens"]
    least = "" if field.least is None else f" from {field.least:g}"
    most = "" if field.most is None else f" to {field.most:g}"
    return f"{kind}{least}{most}" + (f", or {choices}" if choices else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}: {len(FIELDS)} fields")
