import pytest

from traincast.errors import FormatError
from traincast.formats.topology.astra import read_dimensions


@pytest.mark.parametrize(
    ("written", "said"), [("1e308", r"above 9\.313e\+08 GB/s"), ("1e-320", r"below 9\.313e-10 GB/s")]
)
def test_a_bandwidth_that_no_link_has_is_refused_with_its_line(tmp_path, written, said):
    path = tmp_path / "net.yml"
    rows = ("topology: [ Switch, Ring ]", "npus_count: [ 4, 2 ]", f"bandwidth: [ 400, {written} ]", "latency: [ 1, 1 ]")
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(FormatError, match=rf"net\.yml:3: the bandwidth '{written}' is {said}"):
        read_dimensions(path)
