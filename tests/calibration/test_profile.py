"""A cluster written as a file is read back as it was."""

import pytest
from msgspec.structs import replace

from traincast.calibration.cluster_calibration import cluster_toml
from traincast.hardware.cluster import Measured, MeasuredTable
from traincast.hardware.clusters import cluster_names, load_cluster


@pytest.mark.parametrize("name", cluster_names())
def test_every_preset_survives(tmp_path, name):
    preset = load_cluster(name)
    path = tmp_path / "mine.toml"
    path.write_text(cluster_toml(preset, ["fitted", ""]))
    read = load_cluster(str(path))
    assert replace(read, name=name, sources=()) == replace(preset, sources=())
    sources = dict(preset.sources)
    # A fabric is one value with one source, which is the file.
    assert dict(read.sources).items() - {("fabric", f"set in {path}")} == sources.items() - {
        ("fabric", sources.get("fabric"))
    }


def test_a_fabric_survives(tmp_path):
    mine, written = tmp_path / "mine.toml", tmp_path / "elsewhere" / "written.toml"
    written.parent.mkdir()
    for fabric in (
        'kind = "fat-tree"\nnodes_per_leaf = 4\nleaves_per_pod = 2\noversubscription = [2.0, 1.5]',
        'kind = "torus"\ndims = [4, 4]',
        'file = "topology.txt"',
    ):
        mine.write_text(f'base = "h100"\n[fabric]\n{fabric}\n')
        cluster = load_cluster(str(mine))
        written.write_text(cluster_toml(cluster))
        assert load_cluster(str(written)).fabric == cluster.fabric


def test_texts_are_escaped(tmp_path):
    odd = 'a "quoted" \\ back\nnew line \x7f \u00e9'
    preset = load_cluster("h100")
    path = tmp_path / "mine.toml"
    path.write_text(cluster_toml(replace(preset, description=odd), [odd]), encoding="utf-8")
    assert load_cluster(str(path)).description == odd


def test_measured_tables_survive(tmp_path):
    preset = load_cluster("h100")
    tables = (
        MeasuredTable(op="all_reduce", ranks=8, nodes=1, size_bytes=(8, 64), time_s=(1e-6, 2.5e-6), source='a "log"'),
        MeasuredTable(op="all_to_all", ranks=16, nodes=2, size_bytes=(8,), time_s=(1e-6,), source="b"),
    )
    known = replace(preset, measured=Measured(tables=tables, intra=preset.intra, inter=preset.inter))
    path = tmp_path / "mine.toml"
    path.write_text(cluster_toml(known))
    read = load_cluster(str(path))
    assert read.measured == known.measured
    assert replace(read, name="h100", sources=()) == replace(known, sources=())
