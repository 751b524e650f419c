"""Write what the accuracy page's commands say of whole steps into its first table and into the README.

    python studies/headline.py [--check]

The figures are those of ``traincast validate measured_training_runs.csv`` in docs/ACCURACY.md: with each family left
out of the fit that forecasts it, and next to it with all that shares its source and chip. `studies/accuracy.py` runs
this after it has written that page.
"""

import argparse
import re
import sys
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "ACCURACY.md", ROOT / "README.md"
FAMILY, ELSEWHERE = "family", "source+chip"
"""What is left out: what shares source, model, chip and precision; and what shares source and chip."""
_COMMAND = "<!-- validate measured_training_runs.csv --recipes recipe_settings.csv --cv {} -->"
_HELD_OUT = "Error where each group by {} is left out of the fit"
_ROW = re.compile(r"^ {2,4}(\S.*?) {2,}([\d,]+) +([\d.]+ %) +([\d.]+ %) +([\d.]+ %).* (\d+ %)$")
_ONCE = re.compile(r"each of (\d+) sources counted once: median error ([\d.]+ %), (\d+ %)")
_SHOWN = {
    "all": "all",
    "dense BF16/FP16": "dense, BF16",
    "dense FP8": "dense, FP8",
    "dense FP4": "dense, FP4",
    "MoE": "MoE",
    "hybrids": "hybrids (not fitted to)",
    "lora": "LoRA (not fitted to)",
    "sft": "fine-tuning (not fitted to)",
    "layout not full": "layout partly unknown (not fitted to)",
}
"""Row of the page to its name in the table."""
FITS = FIT, KIND, HARD = "fitted to", "kind not fitted", "too far off"
"""Rows of the page by what the fit knows of them."""
_TABLE = re.compile(r"(<!-- accuracy -->\n).*?(\n<!-- end of accuracy -->)", re.DOTALL)
_PEER = re.compile(r"^(\| \*\*traincast\*\* \|)[^|]*\|", re.MULTILINE)


class Figures(NamedTuple):
    """Errors of a group of runs, as they are printed."""

    runs: str
    mean: str
    median: str
    p90: str
    inside: str
    """Share of measured steps in the interval that was forecast."""


class Board(NamedTuple):
    """What is printed with some groups left out."""

    rows: dict[str, Figures]
    """By group."""
    sources: str
    once_median: str
    once_inside: str
    """How many sources, and the figures in which each counts once."""


def held_out(page: str, by: str) -> Board:
    """Return the errors of whole steps by group, with groups by `by` left out.

    Raises
    ------
    ValueError
        If the page does not hold one of the groups.
    """
    _, found, rest = page.partition(_COMMAND.format(by))
    block = rest.partition("```\n\n")[0].partition(_HELD_OUT.format(by))[2].partition("\n\n")[0]
    rows = {row[1]: Figures(*row.groups()[1:]) for row in map(_ROW.match, block.splitlines()) if row}
    missing = {*_SHOWN, *FITS} - set(rows)
    once = _ONCE.search(" ".join(block.split()))
    if not found or missing or once is None:
        names = ", ".join(sorted(missing or _SHOWN))
        raise ValueError(f"{PAGE.name} says nothing of {names} with groups by {by} left out")
    return Board(rows, *once.groups())


def first_table(page: str) -> str:
    """Return the sentence and the table of errors that the page and the README begin with."""
    family, elsewhere = held_out(page, FAMILY), held_out(page, ELSEWHERE)
    every, far = family.rows["all"], elsewhere.rows["all"]
    said = (
        f"**Median error {every.median} (mean {every.mean}) over {every.runs} published training steps, each forecast "
        f"by a fit that has not seen its family; {far.median} (mean {far.mean}) by one that has seen nothing of its "
        "source on its chip**, which is what a new user brings. A family shares source, model, chip and precision. "
        f"Constants were fitted to {family.rows[FIT].runs} of these runs ({family.rows[FIT].median} and "
        f"{elsewhere.rows[FIT].median}), {family.rows[KIND].runs} are of kinds that nothing was fitted to "
        f"({family.rows[KIND].median}), and {family.rows[HARD].runs} are too far off to be fitted to "
        f"({family.rows[HARD].median}); all count. {every.inside} and {far.inside} of the measured steps lie inside "
        f"the 90 % interval; with each of {family.sources} sources counted once {family.once_inside} and "
        f"{elsewhere.once_inside}, with median errors of {family.once_median} and {elsewhere.once_median}."
    )
    lines = [
        *wrap(said, 118, break_on_hyphens=False),
        "",
        "| | runs | family left out: median, 90 % below | inside 90 % | source and chip left out | inside 90 % |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {a.runs} | {a.median}, {a.p90} | {a.inside} | {b.median}, {b.p90} | {b.inside} |"
            for key, name in _SHOWN.items()
            for a, b in [(family.rows[key], elsewhere.rows[key])]
        ),
    ]
    return "\n".join(lines)


def with_headline(text: str, page: str) -> str:
    """Return a page with the figures of the accuracy page in its first table, and next to those of peers."""
    table = first_table(page)
    text = _TABLE.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", text)
    every, far = (held_out(page, by).rows["all"] for by in (FAMILY, ELSEWHERE))
    peer = (
        f" {every.mean} mean ({every.median} median) over {every.runs} published runs, families left out; "
        f"{far.mean} mean with sources and chips left out (M) |"
    )
    return _PEER.sub(lambda found: found[1] + peer, text)


def main() -> int:
    """Write the README and the page, or say whether they are up to date; return the exit code."""
    parser = argparse.ArgumentParser(
        description="write the accuracy page's figures into its first table and the README"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where they differ")
    given = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    stale = False
    for path in (PAGE, README):
        old = path.read_text(encoding="utf-8")
        new = with_headline(old, page)
        stale |= new != old
        if not given.check:
            path.write_text(new, encoding="utf-8")
    return int(given.check and stale)


if __name__ == "__main__":
    sys.exit(main())
