import subprocess
import sys

import pytest
from msgspec.structs import fields, replace

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.estimate.collectives.links import STRAIGHT, rate_inside
from traincast.estimate.collectives.tuning import tables
from traincast.hardware.cluster import Link
from traincast.hardware.clusters import cluster_for, cluster_names, load_cluster
from traincast.hardware.gpu import Gpu, generations, load_gpu

COMPLETE = """
description = "two GPUs and a cable"
gpus_per_node = 2

[gpu]
name = "X1"

[intra]
bandwidth_bytes_per_s = "100GB/s"
base_latency_s = "2us"
hop_latency_s = 1e-6

[inter]
bandwidth_bytes_per_s = "80Gb/s"
base_latency_s = 4e-6
hop_latency_s = "9us"
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def numbers(cluster):
    """Every number of a cluster by its field path."""
    found = {"gpus_per_node": cluster.gpus_per_node}
    for section in ("gpu", "intra", "inter"):
        for field in fields(Gpu if section == "gpu" else Link):
            value = getattr(getattr(cluster, section), field.name)
            if isinstance(value, int | float) and value != field.default:
                found[f"{section}.{field.name}"] = value
    return found


def test_presets_are_known_by_name():
    known = {"a100", "a100-azure", "a800", "h100", "h800", "h200", "b200", "b300", "gb200", "gb300", "l40s", "mi300x"}
    assert known | {"rtx-pro-6000", "tpu-v5p", "ideal"} <= set(cluster_names())


@pytest.mark.parametrize("name", cluster_names())
def test_every_number_of_a_preset_has_a_source_in_a_preset_file(name):
    cluster = load_cluster(name)
    sources = dict(cluster.sources)
    # Only defaults stay without one: a fill of nothing, and no limit.
    assert set(numbers(cluster)) == set(sources)
    assert not [source for source in sources.values() if not source or source.startswith("set in")]
    assert cluster.name == name
    assert cluster.description


def test_ideal_is_the_only_ideal_preset():
    assert [name for name in cluster_names() if load_cluster(name).ideal] == ["ideal"]


@pytest.mark.parametrize("name", cluster_names())
def test_links_stay_below_their_datasheets(name):
    cluster = load_cluster(name)
    gpu, inter = cluster.gpu, cluster.inter
    ranks = cluster.gpus_per_node if cluster.intra.kind in STRAIGHT else 2  # who have all of their links
    assert 0.6 * gpu.link_bytes_per_s < rate_inside(ranks, cluster) < gpu.link_bytes_per_s
    assert gpu.copy_bytes_per_s is None or gpu.copy_bytes_per_s < gpu.hbm_bytes_per_s
    if inter.node_bandwidth_bytes_per_s is not None:
        assert inter.node_bandwidth_bytes_per_s < cluster.gpus_per_node * inter.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", cluster_names())
def test_a_preset_names_an_nccl_and_an_architecture_that_are_known(name):
    cluster = load_cluster(name)
    assert cluster.nccl is None or cluster.gpu.nccl_row in tables(cluster.nccl)["channels"]


@pytest.mark.parametrize("name", cluster_names())
def test_a_preset_is_of_a_gpu_with_a_datasheet_and_of_its_architecture(name):
    """A name that no datasheet has would lose its peaks, its kernels' constants and its factors without a word."""
    gpu = load_cluster(name).gpu
    own = {each: getattr(gpu, each) for each in ("copy_bytes_per_s", "nic_bytes_per_s")}
    assert gpu == replace(load_gpu(gpu.name), **own)
    assert cluster_for(gpu.name).gpu.name == gpu.name


def test_the_row_of_nccls_tables_is_not_the_architecture():
    assert (load_cluster("l40s").gpu.architecture, load_cluster("l40s").gpu.nccl_row) == ("ada", "ampere")
    assert load_cluster("mi300x").gpu.nccl_row is None
    rows = {each.nccl_row for each in generations().values()}
    assert rows - {None} == set(tables("2.27.3")["channels"])
    assert all((each.nccl_row is not None) == (each.vendor == "NVIDIA") for each in generations().values())


def test_the_architecture_follows_the_gpu_and_not_the_base(write):
    path = write('base = "h100"\n[gpu]\nname = "A100-SXM-80GB"\n')
    assert load_cluster(path).gpu.architecture == "ampere"
    with pytest.raises(ConfigError, match=r"gpu\.architecture: is 'ampere', but by its datasheet L40S is 'ada'"):
        load_cluster(write('base = "l40s"\n[gpu]\narchitecture = "ampere"\n'))
    with pytest.raises(UnknownNameError, match="hopper"):
        load_cluster(write('base = "h100"\n[gpu]\nname = "Abacus"\narchitecture = "hoper"\n'))
    own = write('base = "h100"\n[gpu]\nname = "Abacus"\narchitecture = "hopper"\n')
    assert (load_cluster(own).gpu.architecture, load_cluster(own).gpu.nccl_row) == ("hopper", "hopper")


@pytest.mark.parametrize("kind", ["magic", "nvswich", ""])
def test_links_inside_a_node_are_of_a_known_kind(write, kind):
    """A typo of nvswitch would turn the reduction in the switch off without a word."""
    with pytest.raises(ConfigError, match=r"intra\.kind: is .*mesh, nvswitch, pcie, torus.*\.toml"):
        load_cluster(write(f'base = "h100"\n[intra]\nkind = "{kind}"\n'))
    for known in ("mesh", "nvswitch", "pcie", "torus"):
        assert load_cluster(write(f'base = "h100"\n[intra]\nkind = "{known}"\n')).intra.kind == known
    assert load_cluster(write('base = "H100"\n[intra]\nkind = "NVSwitch"\n')).intra.kind == "nvswitch"


def test_a_file_overrides_one_number_of_its_base(write):
    path = write('base = "h100"\n[inter]\nhop_latency_s = "3us"\n')
    base, cluster = load_cluster("h100"), load_cluster(path)
    assert cluster.name == "mine"
    assert cluster.inter == replace(base.inter, hop_latency_s=3e-6)
    assert (cluster.gpu, cluster.intra, cluster.gpus_per_node) == (base.gpu, base.intra, base.gpus_per_node)
    changed = dict(cluster.sources).items() - dict(base.sources).items()
    assert changed == {("inter.hop_latency_s", f"set in {path}")}


@pytest.mark.parametrize("field", sorted(numbers(load_cluster("h100"))))
def test_any_single_number_can_be_overridden(write, field):
    section, _, key = field.rpartition(".")
    header = f"[{section}]\n" if section else ""
    cluster = load_cluster(write(f'base = "h100"\n{header}{key} = 3\n'))
    changed = numbers(cluster).items() - numbers(load_cluster("h100")).items()
    # What was made from it follows (test_overrides.py).
    assert changed >= {(field, 3)}
    assert len(changed) <= 3


def test_a_file_of_its_own_reads_units_and_keeps_defaults(write):
    cluster = load_cluster(write(COMPLETE))
    assert cluster.intra == Link(bandwidth_bytes_per_s=100e9, base_latency_s=2e-6, hop_latency_s=1e-6)
    assert cluster.inter == Link(bandwidth_bytes_per_s=10e9, base_latency_s=4e-6, hop_latency_s=9e-6)
    assert cluster.gpu == Gpu(name="X1")
    assert not cluster.ideal


def test_a_source_beside_a_value_is_kept(write):
    cluster = load_cluster(write('base = "h100"\n[gpu]\nhbm_bytes = { value = "96GB", source = "vendor" }\n'))
    assert cluster.gpu.hbm_bytes == 96_000_000_000
    assert dict(cluster.sources)["gpu.hbm_bytes"] == "vendor"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("gpu_per_node = 8", "gpu_per_node"),
        ("[intra]\nbandwidth = 3", "intra.bandwidth"),
        ("[nvlink]\nbandwidth_bytes_per_s = 3", "nvlink"),
        ("sources = 3", "sources"),
        ("intra = 3", "intra"),
        ("gpus_per_node = 0", "gpus_per_node"),
        ("gpus_per_node = 7.5", "gpus_per_node"),
        ("gpus_per_node = true", "gpus_per_node"),
        ("gpus_per_node = '8'", "gpus_per_node"),
        ("ideal = 1", "ideal"),
        ("description = 1", "description"),
        ("[gpu]\nname = 1", "gpu.name"),
        ("[gpu]\nbf16_dense_flops_per_s = '3GB/s'", "gpu.bf16_dense_flops_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = -1", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = inf", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = nan", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = 1" + "0" * 400, "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = '3us'", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = [1]", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = { rate = 1 }", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = { value = 1, source = 2 }", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbandwidth_bytes_per_s = { value = { value = 1 } }", "inter.bandwidth_bytes_per_s"),
        ("[inter]\nbase_latency_s = 2020-01-01", "inter.base_latency_s"),
        ("[inter]\nbase_latency_s = '0us'", "inter.base_latency_s"),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_file(write, text, field):
    path = write(f'base = "h100"\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    assert caught.value.field == field
    assert path in str(caught.value)


@pytest.mark.parametrize("key", ["description", "gpus_per_node", "name", "bandwidth_bytes_per_s", "hop_latency_s"])
def test_without_a_base_a_missing_number_is_named(write, key):
    lines = [line for line in COMPLETE.splitlines() if not line.startswith(key)]
    with pytest.raises(ConfigError, match="is missing") as caught:
        load_cluster(write("\n".join(lines)))
    assert caught.value.field.endswith(key)


def test_an_unknown_name_lists_the_presets():
    with pytest.raises(UnknownNameError, match="a100, a100-azure, a800"):
        load_cluster("h1000")


@pytest.mark.parametrize("base", ['"mine"', "3", "[]", "{}"])
def test_a_base_must_be_a_preset(write, base):
    with pytest.raises(UnknownNameError, match="base cluster"):
        load_cluster(write(f"base = {base}\n"))


def test_broken_toml_says_the_line(write):
    path = write('base = "h100"\n\n[inter\n')
    with pytest.raises(FormatError) as caught:
        load_cluster(path)
    assert (caught.value.path, caught.value.line) == (path, 3)


def test_a_file_that_ends_too_early_is_a_format_error(write):
    with pytest.raises(FormatError, match="not TOML"):
        load_cluster(write('base = "h1'))


def test_a_file_nested_too_deeply_is_a_format_error(write):
    with pytest.raises(FormatError, match="deeply"):
        load_cluster(write("base = " + "[" * 5000 + "]" * 5000))


def test_a_missing_file_and_a_binary_one_are_format_errors(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        load_cluster(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="UTF-8"):
        load_cluster(str(tmp_path / "binary.toml"))


def test_loading_a_cluster_does_not_import_numpy():
    code = "import sys, traincast.hardware.clusters as c; c.load_cluster('h100'); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_nodes_wait_the_longer_the_more_there_are():
    h100, tpu = load_cluster("h100"), load_cluster("tpu-v5e")
    assert [h100.waiting(ranks) for ranks in (1, 4, 8)] == [1, 1, 1]
    assert h100.waiting(1024) - 1 == pytest.approx(7 * (h100.waiting(16) - 1))
    assert tpu.waiting(8192) - 1 == pytest.approx(5 * 0.021)


def test_a_file_says_how_long_nodes_wait(write):
    assert load_cluster(write('base = "h100"\n[inter]\nskew = 0.01\n')).waiting(32) == pytest.approx(1.02)
