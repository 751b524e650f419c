"""The table ``[fabric]`` of a cluster file."""

import pytest

from traincast.errors import ConfigError
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec


def load(tmp_path, text, base="h100"):
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "{base}"\n[fabric]\n{text}\n')
    return load_cluster(str(path)).fabric


def test_a_cluster_file_may_have_a_fabric(tmp_path):
    assert load_cluster("h100").fabric is None
    text = 'kind = "fat-tree"\nnodes_per_leaf = 4\noversubscription = 2\nlink_bytes_per_s = "400Gb/s"'
    assert load(tmp_path, text) == FabricSpec(
        kind="fat-tree", nodes_per_leaf=4, oversubscription=(2.0,), link_bytes_per_s=50e9
    )
    assert load(tmp_path, 'kind = "torus"\ndims = [4, 4, 8]').dims == (4, 4, 8)
    assert load(tmp_path, 'kind = "rail-only"\nrails = 4').rails == 4


def test_a_file_is_looked_up_beside_the_cluster(tmp_path):
    spec = load(tmp_path, 'file = "topology.txt"\nrouting = "ecmp"')
    assert (spec.kind, spec.file) == ("file", str(tmp_path / "topology.txt"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes_per_leaf = 4", "fabric.kind: is missing"),
        ('kind = "tree"', "fabric.kind: is 'tree'; known: dragonfly+, dual-plane, fat-tree"),
        ('kind = "fat-tree"', "fabric.nodes_per_leaf: is missing"),
        ('kind = "fat-tree"\nnodes_per_leaf = 0', "fabric.nodes_per_leaf: is 0"),
        ('kind = "fat-tree"\nnodes_per_leaf = 2.5', "fabric.nodes_per_leaf: is 2.5; it must be a whole number"),
        ('kind = "fat-tree"\nnodes_per_leaf = 4\nrails = 8', "fabric.rails: means nothing to the kind 'fat-tree'"),
        ('kind = "fat-tree"\nnodes_per_leaf = 4\noversubscription = [2, 2]', "fabric.oversubscription: has 2 numbers"),
        ('kind = "fat-tree"\nnodes_per_leaf = 4\noversubscription = -1', "fabric.oversubscription: is"),
        ('kind = "fat-tree"\nnodes_per_leaf = 4\noversubscription = []', "fabric.oversubscription: is"),
        ('kind = "fat-tree"\nnodes_per_leaf = 4\noversubscription = "2"', "fabric.oversubscription: is '2'"),
        ('kind = "rail-only"\npxn = true', "fabric.pxn: means nothing"),
        ('kind = "rail-optimised"\nnodes_per_leaf = 4\npxn = 1', "fabric.pxn: is 1; it must be true or false"),
        ('kind = "dragonfly+"\nnodes_per_leaf = 4', "fabric.leaves_per_pod: is missing"),
        ('kind = "torus"\ndims = [4096, 4096]', "fabric.dims: are"),
        ('kind = "torus"', "fabric.dims: is missing"),
        ('kind = "torus"\ndims = [4, 0]', "fabric.dims: is 0; it must be a whole number from 1"),
        ('kind = "rail-only"\nrouting = "hash"', "fabric.routing: is 'hash'"),
        ('kind = "rail-only"\nqueue_pairs = 4', "fabric.queue_pairs: means nothing when every path is used"),
        ('kind = "rail-only"\nrouting = "ecmp"\nseed = -1', "fabric.seed: is -1"),
        ('kind = "rail-only"\nlink_bytes_per_s = -1', "fabric.link_bytes_per_s: is -1"),
        ('kind = "rail-only"\nlink_bytes_per_s = "fast"', "not a rate"),
        ('kind = "rail-only"\nfile = "a.txt"', "fabric.file: contradicts"),
        ('kind = "file"', "fabric.file: is missing"),
        ("kind = 3", "fabric.kind: is 3; it must be a text"),
        ("color = 3", "fabric.color: is unknown; known: kind"),
    ],
)
def test_wrong_and_contradictory_numbers_say_so(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)
    assert caught.value.field.startswith("fabric.")
    assert str(caught.value).endswith(f"(in {tmp_path / 'mine.toml'})")


def test_numbers_take_a_unit_and_a_source(tmp_path):
    text = 'link_bytes_per_s = { value = "400Gb/s", source = "the invoice" }\nrouting = "ecmp"\nseed = 0'
    assert load(tmp_path, f'kind = "rail-only"\n{text}') == FabricSpec(
        kind="rail-only", link_bytes_per_s=50e9, routing="ecmp"
    )
    path = tmp_path / "mine.toml"
    sources = dict(load_cluster(path).sources)
    assert (sources["fabric.link_bytes_per_s"], sources["fabric"]) == ("the invoice", f"set in {path}")


def test_a_fabric_must_be_a_table(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\nfabric = "fat-tree"\n')
    with pytest.raises(ConfigError, match="fabric: is 'fat-tree'; it must be a table"):
        load_cluster(str(path))
