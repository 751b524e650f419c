"""Write what the accuracy page says of whole steps into the README.

    python studies/headline.py [--check]

The figures are those of ``traincast validate measured_training_runs.csv --cv family`` in docs/ACCURACY.md, with each
family left out of the fit that forecasts it. `studies/accuracy.py` runs this after it has written that page.
"""

import argparse
import re
import sys
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "ACCURACY.md", ROOT / "README.md"
_COMMAND = "<!-- validate measured_training_runs.csv --recipes recipe_settings.csv --cv family -->"
_HELD_OUT = "Error where each group by family is left out of the fit"
_ROW = re.compile(r"^ {2,4}(\S.*?) {2,}([\d,]+) +([\d.]+ %) +([\d.]+ %) +([\d.]+ %).* (\d+ %)$")
_SHOWN = {"all": "all", "dense BF16/FP16": "dense, BF16", "dense FP8": "dense, FP8", "MoE": "MoE"}
"""Row of the page to its name in the README."""
_TABLE = re.compile(r"(<!-- accuracy -->\n).*?(\n<!-- end of accuracy -->)", re.DOTALL)
_PEER = re.compile(r"^(\| \*\*traincast\*\* \|)[^|]*\|", re.MULTILINE)


class Figures(NamedTuple):
    """Errors of a group of runs, as they are printed."""

    runs: str
    median: str
    p90: str
    inside: str
    """Share of measured steps in the interval that was forecast."""


def held_out(page: str) -> dict[str, Figures]:
    """Return the errors of whole steps by group, with families left out.

    Raises
    ------
    ValueError
        If the page does not hold one of the groups.
    """
    _, found, rest = page.partition(_COMMAND)
    block = rest.partition(_HELD_OUT)[2].partition("\n\n")[0]
    rows = {row[1]: Figures(row[2], row[4], row[5], row[6]) for row in map(_ROW.match, block.splitlines()) if row}
    missing = set(_SHOWN) - set(rows)
    if not found or missing:
        raise ValueError(f"{PAGE.name} says nothing of {', '.join(sorted(missing or _SHOWN))} with families left out")
    return rows


def with_headline(readme: str, page: str) -> str:
    """Return the README with the figures of the accuracy page."""
    rows = held_out(page)
    every, dense, moe = rows["all"], rows["dense BF16/FP16"], rows["MoE"]
    said = (
        f"**Median error {every.median} over {every.runs} published training steps, each forecast with its family left "
        f"out of the fit: {dense.median} where models are dense in BF16, {moe.median} where they are mixtures of "
        "experts.** A family is what shares source, model, GPU and precision. Fitted to all runs the errors are "
        "smaller, with whole sources left out larger: [accuracy](docs/ACCURACY.md) has it all, and which runs do not "
        "count and why."
    )
    lines = [
        *wrap(said, 118),
        "",
        "| | runs | median error | 90 % of errors below | inside the 90 % interval |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {rows[key].runs} | {rows[key].median} | {rows[key].p90} | {rows[key].inside} |"
            for key, name in _SHOWN.items()
        ),
    ]
    text = _TABLE.sub(lambda found: found[1] + "\n" + "\n".join(lines) + "\n" + found[2], readme)
    peer = f" {every.median} median over {every.runs} published runs, families left out (M) |"
    return _PEER.sub(lambda found: found[1] + peer, text)


def main() -> int:
    """Write the README, or say whether it is up to date; return the exit code."""
    parser = argparse.ArgumentParser(description="write the accuracy page's figures into the README")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where they differ")
    given = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = with_headline(old, PAGE.read_text(encoding="utf-8"))
    if given.check:
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
