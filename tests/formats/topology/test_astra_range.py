import pytest

from traincast.errors import FormatError
from traincast.formats.topology.astra import read_dimensions


def test_a_bandwidth_beyond_every_link_is_refused_with_its_line(tmp_path):
    path = tmp_path / "net.yml"
    path.write_text("topology: [ Switch, Ring ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 400, 1e308 ]\nlatency: [ 1, 1 ]\n")
    with pytest.raises(FormatError, match=r"net\.yml:3: the bandwidth '1e308' is above 9\.313e\+08 GB/s"):
        read_dimensions(path)
