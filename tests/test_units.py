"""Quantities as people read them."""

import re
from pathlib import Path

import pytest

import traincast
from traincast.units import counted, format_decimal_size, format_share

SOURCES = Path(traincast.__file__).parent


@pytest.mark.parametrize(
    ("size_bytes", "shown"), [(80e9, "80 GB"), (141e9, "141 GB"), (2.19e6, "2.19 MB"), (999, "999 B"), (1e12, "1 TB")]
)
def test_sizes_of_datasheets_are_decimal(size_bytes, shown):
    assert format_decimal_size(size_bytes) == shown


def test_one_of_a_thing_is_in_the_singular():
    assert [counted(count, "layer") for count in (0, 1, 1024)] == ["0 layers", "1 layer", "1024 layers"]
    assert counted(2, "microbatch", "microbatches") == "2 microbatches"


@pytest.mark.parametrize("digits", [None, 0, 1, 2])
@pytest.mark.parametrize("sign", ["", "+"])
def test_percentages_have_a_point_and_a_blank_and_never_an_exponent(digits, sign):
    shares = [0.0, *(factor * 10.0**power for power in range(-8, 9) for factor in (1, 1.04, 5.55, 9.96, 9.999))]
    for share in (*shares, *(-share for share in shares)):
        shown = format_share(share, digits, sign)
        assert re.fullmatch(r"[-+]?\d+(\.\d+)? %", shown)
        assert float(shown[:-2]) == pytest.approx(100 * share, rel=0.05, abs=0.5 if digits is not None else 0)
    assert [format_share(share, None) for share in (0.997, 0.11, 0.055, 0.0042)] == ["100 %", "11 %", "5.5 %", "0.42 %"]


def test_percentages_are_written_in_one_place():
    # measuring/timing.py goes alone to the machine that is measured.
    others = [path for path in SOURCES.rglob("*.py") if path.name not in ("units.py", "timing.py")]
    number = re.compile(r"\{[^{}]*:[^{}]*(%\}|[efg]\} %)")
    assert len(others) > 300
    for path in others:
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith((">>>", "..."))]
        assert not [line for line in lines if number.search(line)], path
