"""What is said of a cluster file."""

import pytest

from support import write_cluster
from traincast import api
from traincast.errors import ConfigError, FormatError, UnknownNameError

GROWS = "(as many as are counted here; it grows with the job)"


def inspect(folder, **sections):
    return api.inspect(write_cluster(folder / "mine.toml", **sections))


@pytest.mark.parametrize(
    ("fabric", "counts", "layout"),
    [
        (
            {"kind": "non-blocking"},
            {"GPUs": 1024, "nodes": 128, "leaves": 1, "links": 4096},
            {"oversubscription": None, "gpus": f"1,024 {GROWS}"},
        ),
        (
            {"kind": "fat-tree", "nodes_per_leaf": 4, "oversubscription": 2.0, "routing": "ecmp"},
            {"leaves": 32, "spines": 16, "links": 4096 + 2 * 32 * 16},
            {"oversubscription": "leaf 2:1", "bisection": "12.42 TB/s", "fabric": "fat-tree, ecmp"},
        ),
        (
            {"kind": "rail-optimised", "nodes_per_leaf": 32, "leaves_per_pod": 64, "oversubscription": [1.0, 2.0]},
            {"GPUs": 4096, "leaves": 128, "spines": 2, "cores": 1},
            {"oversubscription": "leaf 1:1, spine 2:1", "gpus": f"4,096 {GROWS}"},
        ),
        (
            {"kind": "fat-tree", "nodes_per_leaf": 32, "leaves_per_pod": 8},
            {"GPUs": 4096, "leaves": 16, "spines": 2, "cores": 1},
            {"oversubscription": "leaf 1:1, spine 1:1", "gpus": f"4,096 {GROWS}"},
        ),
        (
            {"kind": "fat-tree", "nodes_per_leaf": 128},
            {"GPUs": 1024, "leaves": 1},
            {"oversubscription": None, "gpus": f"1,024 {GROWS}"},
        ),
        (
            {"kind": "torus", "dims": [8, 4], "link_bytes_per_s": 90e9},
            {"GPUs": 32, "links": 128},
            {"nic": "90 GB/s", "bisection": "720 GB/s", "gpus": "32 (all there are)"},
        ),
    ],
)  # fmt: skip
def test_what_was_understood_of_a_fabric(tmp_path, fabric, counts, layout):
    found = inspect(tmp_path, fabric=fabric)
    assert (found.format, found.generation) == ("cluster", f"cluster file, fabric {fabric['kind']}")
    assert counts.items() <= found.counts.items()
    assert layout.items() <= found.layout.items()
    assert (found.layout["gpus_per_node"], found.layout["inter"]) == (8, "48.5 GB/s")


def test_a_cluster_file_without_a_fabric(tmp_path):
    found = inspect(tmp_path, gpus_per_node=4)
    assert (found.counts, found.layout["fabric"]) == ({}, None)


def test_wrong_files_say_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match=r"fabric\.nodes_per_leaf: is missing"):
        inspect(tmp_path, fabric={"kind": "fat-tree"})
    with pytest.raises(UnknownNameError, match="base cluster"):
        inspect(tmp_path, base="none", fabric={"kind": "non-blocking"})
    (tmp_path / "other.toml").write_text("model = 'x'\n")
    with pytest.raises(FormatError, match="not a file of a known format"):
        api.inspect(tmp_path / "other.toml")
    (tmp_path / "broken.toml").write_text("[fabric\n")
    with pytest.raises(FormatError, match=r"broken\.toml:1: is not TOML"):
        api.inspect(tmp_path / "broken.toml")


def test_a_folder_may_hold_cluster_files(tmp_path):
    inspect(tmp_path, fabric={"kind": "rail-only"})
    assert [each.format for each in api.inspect_all(tmp_path)] == ["cluster"]
