"""The README promises what the code does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import docs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _block(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)\n```", README, re.DOTALL)
    assert found, f"the README has no block after <!-- {marker} -->"
    return found[1]


def test_the_shown_output_is_what_the_command_prints() -> None:
    arguments = _block("run").split("traincast ", 1)[1].split()
    done = subprocess.run(
        [sys.executable, "-m", "traincast.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    shown = _block("output").splitlines()
    # tools/docs.py --check holds every figure of every page to what is printed; here the words count, whatever
    # a fit makes of the figures.
    again = docs.excerpt(shown, [line.rstrip() for line in done.stdout.splitlines()])
    assert [words(line) for line in again] == [words(line) for line in shown]
    assert shown[0].startswith("Step ")
    assert any(re.search(r"^  interval .* \(90 %\)$", line) for line in shown)


def words(line: str) -> str:
    return " ".join(re.sub(r"[\d.,█]+", "#", line).split())


def test_the_commands_install_what_they_use() -> None:
    assert ".venv/bin/pip install -q ." in _block("run")
    assert "'.[dev]'" in _block("test")
    assert "pytest" in _block("test")


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:)([^)#\"]+\.\w+)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
