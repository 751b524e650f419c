"""A GPU without a preset gets a cluster from its datasheet; a new one is a row of a table, or a file."""

import csv

import pytest
from msgspec.structs import fields, replace

import traincast
from traincast import shipped
from traincast.api import run_again
from traincast.errors import ConfigError, FormatError, InfeasibleError, UnknownNameError
from traincast.estimate.collectives.links import rate_inside
from traincast.hardware import gpu as gpu_module
from traincast.hardware.cluster import Link
from traincast.hardware.clusters import cluster_names, gpu_named, load_cluster, preset_of
from traincast.hardware.from_datasheet import LIKE, NIC_SHARE, NODE_SHARE, cluster_from_datasheet, with_domain
from traincast.hardware.gpu import gpu_names, load_gpu
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.report.json import result_from_json, to_json
from traincast.shipped import shipped_text
from traincast.units import format_share

ALONE = [name for name in gpu_names() if preset_of(load_gpu(name)) is None]
JOB = JobRequest(model=load_model("llama3-8b"), gpus=8, tp=4, seq_length=1024, global_batch=8, zero=1)

OWN = """
[gpu]
name = "Abacus"
architecture = "hopper"
sms = 100
bf16_dense_flops_per_s = 400e12
hbm_bytes = "96GB"
hbm_bytes_per_s = "4TB/s"
link_kind = "nvswitch"
link_bytes_per_s = "450GB/s"
"""


def built(name):
    return cluster_from_datasheet(load_gpu(name), "datasheet", load_cluster)


@pytest.mark.parametrize("name", ["H20", "H100-PCIe", "GH200", "V100", "MI325X", "MI355X"])
def test_gpus_that_people_ask_for_are_clusters(name):
    cluster = load_cluster(name.lower())
    assert cluster.gpu == replace(load_gpu(name), copy_bytes_per_s=cluster.gpu.copy_bytes_per_s)
    (text,) = cluster.assumed
    assert f"no collectives were measured on {cluster.gpu.name}" in text
    assert f"nodes of {cluster.gpus_per_node}" in text


@pytest.mark.parametrize("name", ALONE)
def test_links_stay_below_the_datasheet_and_every_number_has_a_source(name):
    cluster, gpu = load_cluster(name), load_gpu(name)
    for members in (2, cluster.gpus_per_node):
        assert 0 < rate_inside(members, cluster) < gpu.link_bytes_per_s
    assert cluster.intra.kind == (gpu.link_kind or None)
    assert cluster.inter.node_bandwidth_bytes_per_s <= cluster.gpus_per_node * cluster.inter.bandwidth_bytes_per_s
    sources = dict(cluster.sources)
    said = {
        f"{level}.{each.name}"
        for level in ("intra", "inter")
        for each in fields(Link)
        if isinstance(value := getattr(getattr(cluster, level), each.name), int | float) and value != each.default
    }
    assert said == {path for path in sources if path.startswith(("intra.", "inter."))}
    assert all("no measured collectives" in sources[path] for path in said)
    rate = gpu.host_bytes_per_s if gpu.link_kind == "pcie" else gpu.link_bytes_per_s
    assert (
        f"collectives reach {format_share(cluster.intra.bandwidth_bytes_per_s / rate, 0)} as on" in cluster.assumed[0]
    )
    assert (cluster.nccl is None) == (gpu.nccl_row is None)


@pytest.mark.parametrize("preset", ["h100", *LIKE.values()])
def test_built_from_its_datasheet_a_preset_that_others_are_like_is_itself(preset):
    """At a ratio of one nothing of the links inside a node may move."""
    known = load_cluster(preset)
    cluster = built(known.gpu.name)
    nodes = range(2, 9)
    assert [rate_inside(each, cluster) for each in nodes] == pytest.approx(
        [rate_inside(each, known) for each in nodes], rel=1e-3
    )
    assert cluster.intra.hop_latency_s == known.intra.hop_latency_s
    assert cluster.gpu.copy_bytes_per_s == known.gpu.copy_bytes_per_s


def test_rates_follow_the_datasheet():
    slow, fast = load_gpu("h20"), replace(load_gpu("h20"), link_bytes_per_s=900e9, nic_bytes_per_s=100e9)
    one, two = (cluster_from_datasheet(each, "datasheet", load_cluster) for each in (slow, fast))
    assert two.intra.bandwidth_bytes_per_s == pytest.approx(2 * one.intra.bandwidth_bytes_per_s)
    assert one.inter.bandwidth_bytes_per_s == pytest.approx(50e9 * NIC_SHARE)
    assert two.inter.node_bandwidth_bytes_per_s == pytest.approx(8 * 100e9 * NODE_SHARE)


def test_bridged_cards_are_fast_in_pairs_and_slow_in_a_node():
    cluster = load_cluster("h100-pcie")
    assert cluster.gpus_per_node == 8
    assert rate_inside(2, cluster) > 4 * rate_inside(4, cluster)
    assert rate_inside(4, cluster) == 2 * cluster.intra.bandwidth_bytes_per_s  # a ring by each card of a pair
    of_four = load_cluster("h200-nvl")
    assert rate_inside(4, of_four) == rate_inside(2, of_four) > 3 * rate_inside(8, of_four)
    assert rate_inside(8, of_four) == 4 * of_four.intra.bandwidth_bytes_per_s
    apart = replace(of_four, intra=replace(of_four.intra, pair_bandwidth_bytes_per_s=None))
    assert rate_inside(8, apart) == of_four.intra.bandwidth_bytes_per_s
    plain = load_cluster("v100-pcie")
    assert rate_inside(2, plain) < plain.gpu.host_bytes_per_s
    slower = 15.75 / 63  # PCIe 3 to PCIe 5
    like = load_cluster("rtx-pro-6000").intra
    assert plain.intra.halves_bandwidth_bytes_per_s == pytest.approx(like.halves_bandwidth_bytes_per_s * slower)
    assert plain.intra.pair_bandwidth_bytes_per_s == pytest.approx(like.pair_bandwidth_bytes_per_s * slower)


def test_what_larger_groups_lose_over_pcie_is_of_the_machine_that_was_measured():
    measured, link = load_cluster("l40s"), load_cluster("l40s").intra
    own = with_domain(measured, 4, 4, 384)
    assert rate_inside(4, measured) < rate_inside(4, own) == pytest.approx(rate_inside(2, measured))
    (said,) = own.assumed
    assert said.startswith("nodes of 4 GPUs over PCIe have host bridges of their own")
    assert with_domain(measured, 8, 8, 64).intra == link
    # A switch is as fast in smaller nodes.
    h100 = load_cluster("h100")
    assert with_domain(h100, 4, 4, 64).intra == h100.intra


def test_copies_take_the_share_of_the_memory_that_a_measured_gpu_shows():
    h100, h20 = load_cluster("h100").gpu, load_gpu("h20")
    share = h100.copy_bytes_per_s / h100.hbm_bytes_per_s
    assert built("h20").gpu.copy_bytes_per_s == pytest.approx(share * 4e12)
    assert built("mi325x").gpu.copy_bytes_per_s is None
    said = cluster_from_datasheet(replace(h20, copy_bytes_per_s=1e12), "datasheet", load_cluster)
    assert said.gpu.copy_bytes_per_s == 1e12
    blank = replace(h20, name="Abacus", hbm_bytes_per_s=None)
    assert cluster_from_datasheet(blank, "datasheet", load_cluster).gpu.copy_bytes_per_s is None


def test_a_mesh_of_four_gives_two_a_third_of_the_links():
    cluster = load_cluster("gh200")
    assert (cluster.gpus_per_node, cluster.intra.kind) == (4, "mesh")
    assert rate_inside(2, cluster) == pytest.approx(rate_inside(4, cluster) / 3)


def test_a_gpu_with_a_preset_is_that_preset_and_says_so():
    cluster = load_cluster("NVIDIA H100 80GB HBM3")
    assert replace(cluster, assumed=()) == load_cluster("h100")
    assert cluster.assumed == ("NVIDIA H100 80GB HBM3 is the GPU of the preset h100, which is taken",)
    assert not [name for name in cluster_names() if load_cluster(name).assumed]
    with pytest.raises(UnknownNameError, match="unknown cluster 'abacus'; known: a100, "):
        load_cluster("abacus")


def test_a_forecast_on_a_gpu_by_name_says_what_was_taken_and_runs_again():
    result = traincast.predict(JOB, "h20")
    (said,) = [note for note in result.assumptions if note.code == "cluster-assumed"]
    assert said.text == load_cluster("h20").assumed[0]
    assert result.cluster.gpu == "H20-SXM-96GB"
    again = run_again(result_from_json(to_json(result), "result.json"))
    assert to_json(again) == to_json(result)


def test_a_file_with_nothing_but_a_gpu_is_a_cluster_and_a_gpu(tmp_path):
    path = tmp_path / "abacus.toml"
    path.write_text(OWN, encoding="utf-8")
    cluster = load_cluster(path)
    assert (cluster.name, cluster.gpus_per_node, cluster.gpu.nccl_row) == ("abacus", 8, "hopper")
    assert cluster.intra.bandwidth_bytes_per_s == pytest.approx(load_cluster("h100").intra.bandwidth_bytes_per_s)
    assert cluster.gpu == replace(gpu_named(path), copy_bytes_per_s=cluster.gpu.copy_bytes_per_s)
    slow = traincast.operator("gemm", path, m=8192, n=8192, k=8192).cost.time_s
    assert slow > traincast.operator("gemm", "h100", m=8192, n=8192, k=8192).cost.time_s
    result = traincast.predict(JOB, path)
    assert f"datasheet in {path}" in next(note.text for note in result.assumptions if note.code == "cluster-assumed")
    assert result.iteration_time_s > traincast.predict(JOB, "h100").iteration_time_s
    path.write_text(OWN + "domain = 1\n", encoding="utf-8")
    assert load_cluster(path).gpus_per_node == 1
    path.write_text("gpus_per_node = 4\n" + OWN, encoding="utf-8")
    assert load_cluster(path).inter.node_bandwidth_bytes_per_s == pytest.approx(4 * 50e9 * NODE_SHARE)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('link_kind = "nvswich"', "gpu.link_kind"),
        ('host_cpu = "epyc"', "gpu.host_cpu"),
        ("kin = 3", "gpu.kin"),
        ('kin = ["H100-SXM-80GB", 3]', "gpu.kin"),
        ("sms = 1.5", "gpu.sms"),
        ("link = 3", "gpu.link"),
        ("bf16_flops_per_s = 1e12", "gpu.bf16_flops_per_s"),
    ],
)
def test_a_wrong_value_of_a_gpu_is_named_with_its_field_and_file(tmp_path, line, field):
    path = tmp_path / "abacus.toml"
    kept = [each for each in OWN.splitlines() if each.partition(" ")[0] != line.partition(" ")[0]]
    path.write_text("\n".join([*kept, line]), encoding="utf-8")
    for load in (load_cluster, gpu_named):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.field == field
        assert str(path) in str(caught.value)


def test_without_links_and_their_rate_the_first_missing_number_is_named(tmp_path):
    path = tmp_path / "abacus.toml"
    path.write_text("\n".join(each for each in OWN.splitlines() if not each.startswith("link_bytes")), encoding="utf-8")
    with pytest.raises(ConfigError, match="is missing; give it, or a base"):
        load_cluster(path)
    assert gpu_named(path).sms == 100
    bare = path.rename(tmp_path / "abacus")
    assert gpu_named(bare).sms == 100
    with pytest.raises(FormatError, match="cannot be read"):
        gpu_named(path)
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        gpu_named(tmp_path / "none")
    assert gpu_named(load_gpu("h20")) is load_gpu("h20")


@pytest.fixture
def table_with(tmp_path, monkeypatch):
    """Return a function that adds a row to the tables of GPUs and of generations, for one test."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    for table in ("gpus.csv", "generations.csv"):
        (folder / table).write_text(shipped_text(f"gpus/{table}"), encoding="utf-8")

    def add(table, **cells):
        path = folder / table
        columns = next(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        assert set(cells) <= set(columns)
        with path.open("a", encoding="utf-8", newline="") as stream:
            csv.DictWriter(stream, columns, restval="").writerow(cells)
        shipped.constant.cache_clear()

    monkeypatch.setattr(
        gpu_module, "shipped_rows", lambda path: csv.DictReader((tmp_path / path).read_text("utf-8").splitlines())
    )
    yield add
    monkeypatch.undo()
    shipped.constant.cache_clear()


ROW = {
    "name": "Abacus-1",
    "aliases": "abacus",
    "bf16_dense_flops_per_s": "4e14",
    "fp16_dense_flops_per_s": "4e14",
    "hbm_bytes": "96e9",
    "hbm_bytes_per_s": "4e12",
    "link": "wires",
    "link_kind": "mesh",
    "link_bytes_per_s": "400e9",
    "domain": "4",
    "nic_bytes_per_s": "25e9",
    "confidence": "low",
    "source": "this test",
}


def test_a_new_gpu_is_one_row(table_with):
    table_with("gpus.csv", **ROW, architecture="hopper")
    assert load_cluster("abacus").gpu.nccl_row == "hopper"
    assert traincast.predict(JOB, "abacus").cluster["gpu"] == "Abacus-1"
    assert traincast.operator("attention", "abacus", queries=1024, heads=8, qk_dim=64).gpu == "Abacus-1"


def test_a_new_generation_is_one_row(table_with):
    table_with("generations.csv", name="slate", title="Slate", vendor="Quarry", attention="fa2", bf16="no")
    table_with("gpus.csv", **ROW, architecture="slate")
    result = traincast.predict(JOB, "abacus")
    assert (result.job.precision, result.job.attention_kernel) == ("fp16", "fa2")
    with pytest.raises(InfeasibleError, match="flash attention 3 needs Hopper; Abacus-1 is slate: use unfused or fa2"):
        traincast.predict(replace(JOB, attention_kernel="fa3"), "abacus")
    with pytest.raises(InfeasibleError, match="no matrix units for bf16; use fp16"):
        traincast.predict(replace(JOB, precision="bf16"), "abacus")
