"""The page about jobs names what there is."""

import re
from pathlib import Path

from traincast.hardware.attention_kernels import ATTENTION_KERNELS, TITLES
from traincast.hardware.gpu import generations
from traincast.job.frameworks import framework_names

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"


def test_every_framework_has_a_row_of_its_table_and_no_other():
    rows = re.findall(
        r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8").partition("| framework |")[2].partition("##")[0], re.M
    )
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(framework_names())


def test_the_table_of_attention_kernels_is_the_one_of_the_code():
    lines = PAGE.read_text(encoding="utf-8").partition("## Attention kernels")[2].partition("##")[0]
    rows = {name: row.lower() for name, row in re.findall(r"^\| `(\w+)` \| (.*?) \|", lines, re.M)}
    assert list(rows) == list(ATTENTION_KERNELS)
    for kernel in TITLES:
        architectures = [each.name for each in generations().values() if kernel in each.attention]
        shown = [each for each in architectures if not each.startswith("cdna")]
        assert [each for each in shown if each not in rows[kernel]] == []
        assert ("hopper" in rows[kernel], "blackwell" in rows[kernel]) == (
            "hopper" in architectures,
            "blackwell" in architectures,
        )
