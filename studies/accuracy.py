"""Write what `traincast validate` prints into docs/ACCURACY.md, and the figures that the README shows of it.

    python studies/accuracy.py [--data DIR] [--only TEXT] [--check]

DIR holds the measured files, packed or not; `studies/data` by default. Each block of the page that follows a
line such as ``<!-- validate nccl.csv --cv ranks -->`` is replaced by what the command prints there, where public tables
are brought to the common schema (`common_schema`), with the settings of the recipes that the command names. ``--check``
writes nothing: it shows where the page differs from what is printed now, and ends with 1 then.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

from common_schema import write_common
from datafiles import DATA, table_path, unpack
from headline import README, with_headline
from traincast import __version__

PAGE = Path(__file__).parent.parent / "docs" / "ACCURACY.md"
STAMP = re.compile(r"`python \w+/accuracy\.py`, .*\.$", re.MULTILINE)
BLOCK = re.compile(r"(<!-- (validate [^\n]*) -->\n```text\n).*?(```\n)", re.DOTALL)


def printed(command: str, data: Path) -> str:
    """Return what a command prints where the measured files that it names are as it reads them."""
    first, *words = command.split()
    files = [word for word in words if word.endswith((".csv", ".txt"))]
    recipes = next((after for word, after in pairwise(words) if word == "--recipes"), None)
    with tempfile.TemporaryDirectory() as unpacked:
        folder = Path(unpacked)
        unpack([name for name in files if name not in words[:1]], folder, data)
        write_common(table_path(words[0], data), folder / words[0], None if recipes is None else folder / recipes)
        done = subprocess.run(
            [sys.executable, "-m", "traincast.cli", first, *words],
            cwd=folder,
            env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def stamp() -> str:
    """Return what wrote the page: this script, the day and the version."""
    return f"`python studies/accuracy.py`, {datetime.now(UTC).date().isoformat()}, traincast {__version__}."


def differences(before: dict[Path, str], after: dict[Path, str]) -> int:
    """Show where pages differ from what is printed; return 1 where they do."""
    for path, text in after.items():
        shown = unified_diff(before[path].splitlines(), text.splitlines(), f"{path.name}, as it stands", "as printed")
        print(*shown, sep="\n")
    return int(before != after)


def main() -> int:
    """Rewrite the page; return the exit code."""
    parser = argparse.ArgumentParser(description="write what validate prints into docs/ACCURACY.md")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the measured files")
    parser.add_argument("--only", default="", metavar="TEXT", help="rewrite only blocks whose command holds this text")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page differs")
    given = parser.parse_args()
    before = {path: path.read_text(encoding="utf-8") for path in (PAGE, README)}
    page = PAGE.read_text(encoding="utf-8")
    page = BLOCK.sub(
        lambda found: f"{found[1]}{printed(found[2], given.data)}{found[3]}" if given.only in found[2] else found[0],
        page,
    )
    page = page if given.check else STAMP.sub(stamp(), page)
    after = {path: with_headline(text, page) for path, text in (before | {PAGE: page}).items()}
    if given.check:
        return differences(before, after)
    for path, text in after.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
