"""A number of a cluster that is said otherwise: a file, a what-if and a cluster with that number agree."""

import pytest
from msgspec.structs import fields, replace

from traincast.hardware.cluster import Link
from traincast.hardware.clusters import cluster_from_table, cluster_names, cluster_table, load_cluster
from traincast.hardware.gpu import Gpu
from traincast.job.options import StepOptions
from traincast.simulation.step import Setting
from traincast.simulation.what_if import changed

PRESETS = [each for each in cluster_names() if each != "ideal"]


def numbers(cluster):
    found = {"gpus_per_node": cluster.gpus_per_node}
    for section, kind in (("gpu", Gpu), ("intra", Link), ("inter", Link)):
        values = {each.name: getattr(getattr(cluster, section), each.name) for each in fields(kind)}
        found |= {f"{section}.{name}": value for name, value in values.items() if isinstance(value, int | float)}
    return found


def other(value):
    """Another value that a field of that value may have."""
    return value * 2 or 1


def what_if(cluster, *texts):
    return changed(Setting.from_options(StepOptions(), cluster), texts).setting.cluster


def overridden(tmp_path, base, said):
    lines = [f'base = "{base}"']
    for path, value in said.items():
        lines.append(f"{path} = {value}")
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_cluster(str(file))


@pytest.mark.slow
@pytest.mark.parametrize("base", PRESETS)
def test_a_number_in_a_file_and_in_a_what_if_make_the_same_cluster(tmp_path, base):
    cluster = load_cluster(base)
    for path, value in numbers(cluster).items():
        more = other(value)
        file, changed_by = overridden(tmp_path, base, {path: more}), what_if(cluster, f"{path}={more}")
        assert numbers(file) == numbers(changed_by), path
        assert numbers(file)[path] == more
        assert "set in" in dict(file.sources)[path]
        assert cluster.description not in file.description


@pytest.mark.parametrize("base", PRESETS)
@pytest.mark.parametrize(("name", "path"), [("nic_bandwidth", "gpu.nic_bytes_per_s"),
                                            ("nvlink_bandwidth", "gpu.link_bytes_per_s")])  # fmt: skip
def test_a_rate_by_its_plain_name_is_the_one_of_the_datasheet(tmp_path, base, name, path):
    rate = 3e9 * round(numbers(load_cluster(base)).get(path, 25e9) / 1e9)
    assert numbers(what_if(load_cluster(base), f"{name}={rate / 1e9:g}GB/s")) == numbers(
        overridden(tmp_path, base, {path: rate})
    )


def test_what_was_made_from_a_number_keeps_its_ratio_to_it():
    h100 = load_cluster("h100")
    was = numbers(h100)
    follows = {
        "inter.bandwidth_bytes_per_s": ["inter.node_bandwidth_bytes_per_s"],
        "gpus_per_node": ["inter.node_bandwidth_bytes_per_s"],
        "gpu.link_bytes_per_s": ["intra.bandwidth_bytes_per_s"],
        "gpu.hbm_bytes_per_s": ["gpu.copy_bytes_per_s"],
        "gpu.bf16_dense_flops_per_s": ["gpu.fp16_dense_flops_per_s"],
    }
    for path, value in was.items():
        if path == "gpu.nic_bytes_per_s":
            continue
        now = numbers(what_if(h100, f"{path}={other(value)}"))
        ratio = {each: now[each] / was[each] for each in now if now[each] != was[each]}
        assert set(ratio) == {path, *follows.get(path, [])}
        assert len({round(each, 9) for each in ratio.values()}) == 1


def test_a_number_that_is_said_itself_does_not_follow(tmp_path):
    rate, node = "inter.bandwidth_bytes_per_s", "inter.node_bandwidth_bytes_per_s"
    assert numbers(overridden(tmp_path, "h100", {rate: 100e9, node: 5e11}))[node] == 5e11
    both = overridden(tmp_path, "h100", {rate: 97e9, "gpus_per_node": 4})
    assert numbers(both)[node] == pytest.approx(350e9)
    assert "follows gpus_per_node" in dict(both.sources)[node] or "follows inter" in dict(both.sources)[node]


def test_a_cluster_that_says_every_number_itself_agrees():
    h100 = load_cluster("h100")
    faster = what_if(h100, "inter.bandwidth_bytes_per_s=100e9")
    assert numbers(cluster_from_table(cluster_table(faster), "whole")) == numbers(faster)
    assert faster.measured == h100.measured
    assert numbers(replace(faster, name="other")) == numbers(faster)


def test_a_preset_of_another_card_is_the_one_with_that_card(tmp_path):
    """B300's network is that of H100 and B200 with twice the line rate."""
    card = load_cluster("b300").gpu.nic_bytes_per_s
    rates = ("inter.bandwidth_bytes_per_s", "inter.node_bandwidth_bytes_per_s")
    for base in ("h100", "b200"):
        for cluster in (overridden(tmp_path, base, {"gpu.nic_bytes_per_s": card}),
                        what_if(load_cluster(base), "nic_bandwidth=800Gb/s")):  # fmt: skip
            assert [numbers(cluster)[each] for each in rates] == pytest.approx([97e9, 700e9])


@pytest.mark.parametrize("base", PRESETS)
def test_a_faster_card_never_limits_what_nothing_limited(base):
    cluster = load_cluster(base)
    for factor in (0.9, 1.02, 1.5):
        other = what_if(cluster, f"gpu.nic_bytes_per_s={cluster.gpu.nic_bytes_per_s * factor}")
        assert other.inter.bandwidth_bytes_per_s == pytest.approx(factor * cluster.inter.bandwidth_bytes_per_s)
        assert (other.inter.node_bandwidth_bytes_per_s is None) == (cluster.inter.node_bandwidth_bytes_per_s is None)
