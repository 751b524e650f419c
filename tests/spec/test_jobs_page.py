"""The page about jobs names what there is."""

import re
from pathlib import Path

from traincast.spec.stacks import stack_names

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"


def test_every_stack_has_a_row_of_its_table_and_no_other():
    rows = re.findall(
        r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8").partition("| stack |")[2].partition("##")[0], re.M
    )
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(stack_names())
