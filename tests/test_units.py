"""Quantities as people read them."""

import pytest

from traincast.units import counted, format_decimal_size


@pytest.mark.parametrize(
    ("size_bytes", "shown"), [(80e9, "80 GB"), (141e9, "141 GB"), (2.19e6, "2.19 MB"), (999, "999 B"), (1e12, "1 TB")]
)
def test_sizes_of_datasheets_are_decimal(size_bytes, shown):
    assert format_decimal_size(size_bytes) == shown


def test_one_of_a_thing_is_in_the_singular():
    assert [counted(count, "layer") for count in (0, 1, 1024)] == ["0 layers", "1 layer", "1024 layers"]
    assert counted(2, "microbatch", "microbatches") == "2 microbatches"
