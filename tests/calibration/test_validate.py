"""``validate``: predictions against a file, in total and by group."""

import numpy as np
import pytest

import traincast
from calibrate_logs import nccl_log
from traincast.calibration.kind import KINDS, Grouping
from traincast.calibration.kinds.collectives import preset_named_in
from traincast.calibration.worst import worst_groups
from traincast.errors import ConfigError, FormatError
from traincast.estimate.collectives import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation

SIZES = (1024, 2**17, 2**21, 2**28)


def priced(cluster, ranks, size_bytes):
    return estimate_collective(Operation.ALL_REDUCE, size_bytes, Placement((ranks,)), load_cluster(cluster)).time_s


@pytest.fixture
def file(tmp_path):
    """All-reduces that took 1.25 times (a100) or 0.8 times (h100) as long as the model says, and others."""
    lines = ["gpu,op,num_gpus,message_bytes,time_s,suspect"]
    for gpu, factor in (("h100_sxm", 0.8), ("a100_sxm", 1.25)):
        lines += [
            f"{gpu},all_reduce,{ranks},{size},{priced(gpu[:4], ranks, size) * factor!r},"
            for ranks in (2, 8)
            for size in SIZES
        ]
    lines += ["abacus,all_reduce,2,1024,1,", ",all_reduce,2,1024,1,", "a100_sxm,all_reduce,2,1024,1,cold"]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_each_row_is_priced_on_its_own_preset(file):
    found = traincast.validate(file)
    assert (found.kind, found.total.rows, found.total.evaluated) == ("collectives", 19, 16)
    groups = {(group.by, group.name): group.figures for group in found.groups}
    assert groups["gpu", "a100_sxm"].bias == pytest.approx(-0.2)
    assert groups["gpu", "h100_sxm"].bias == pytest.approx(0.25)
    assert (groups["gpu", "abacus"].rows, groups["gpu", "abacus"].coverage) == (1, 0.0)
    assert groups["gpu", "abacus"].median_abs_error is None
    assert found.total.median_abs_error == pytest.approx(0.225)
    reasons = [(row.id.rpartition(":")[2], row.reason) for row in found.skipped]
    assert [line for line, _ in reasons] == ["20", "18", "19"]
    assert reasons[0][1] == "cold"
    assert "no preset for the GPU 'abacus'" in reasons[1][1]
    assert "not specified" in reasons[2][1]


def test_groups_come_in_their_natural_order(file):
    by = [(group.by, group.name) for group in traincast.validate(file, by=["size", "ranks"]).groups]
    sizes = ["<= 64 KiB", "<= 1 MiB", "<= 16 MiB", "> 16 MiB"]
    assert by == [("size", name) for name in sizes] + [("ranks", "2"), ("ranks", "8")]
    assert Grouping.from_labels("ranks", [16, 2, 128]).names == ("2", "16", "128")
    rows = {group.name: group.figures.rows for group in traincast.validate(file, by=["size"]).groups}
    # Two rows of 1 KiB more: those that have no preset.
    assert rows == {"<= 64 KiB": 6, "<= 1 MiB": 4, "<= 16 MiB": 4, "> 16 MiB": 4}


def test_groups_can_be_crossed(file):
    groups = {group.name: group.figures for group in traincast.validate(file, by=["gpu+ranks"]).groups}
    assert {group.by for group in traincast.validate(file, by=["gpu+ranks"]).groups} == {"gpu+ranks"}
    names = ["a100_sxm, 2", "a100_sxm, 8", "abacus, 2", "h100_sxm, 2", "h100_sxm, 8", "not specified, 2"]
    assert list(groups) == names
    assert [groups[name].evaluated for name in names] == [4, 4, 0, 4, 4, 0]
    assert groups["h100_sxm, 8"].bias == pytest.approx(0.25)


def test_the_worst_rows_come_first(file):
    worst = traincast.validate(file).worst
    assert len(worst) == 10
    assert [abs(row.error) for row in worst] == sorted((abs(row.error) for row in worst), reverse=True)
    first = worst[0]
    assert first.error == pytest.approx(first.predicted / first.measured - 1)
    assert {"gpu", "op", "ranks", "nodes", "size_bytes", "cluster", "algorithm", "protocol"} == set(first.details)


def test_the_groups_with_most_of_the_error_come_first(file):
    found = traincast.validate(file).predictions
    groups = worst_groups(found, "gpu")
    assert [(each.by, each.name, each.rows) for each in groups] == [("gpu", "h100_sxm", 8), ("gpu", "a100_sxm", 8)]
    assert sum(each.share for each in groups) == pytest.approx(1.0)
    assert groups[0].share == pytest.approx(0.25 / (0.25 + 0.2))
    for each, error in zip(groups, (0.25, -0.2), strict=True):
        assert (each.lowest, each.bias, each.highest) == pytest.approx((error,) * 3)
    assert worst_groups(found, None) == ()


def test_a_given_cluster_is_that_of_every_row(file):
    found = traincast.validate(file, "h100")
    assert found.total.evaluated == 18
    assert set(found.predictions.details["cluster"]) == {"h100"}
    assert np.isfinite(found.predictions.predicted).all()


def test_the_name_of_a_file_says_the_gpu_where_no_row_does(tmp_path):
    text = "ranks,size_bytes,time_us\n16,1024,50\n"
    (tmp_path / "all_reduce_a100.csv").write_text(text)
    (tmp_path / "all_reduce.csv").write_text(text)
    found = traincast.validate(tmp_path / "all_reduce_a100.csv")
    assert found.total.evaluated == 1
    assert found.predictions.details["nodes"] == (2,)
    assert [note.code for note in found.notes] == ["cluster-from-name"]
    assert traincast.validate(tmp_path / "all_reduce.csv").total.evaluated == 0


def test_a_log_is_validated_too(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(nccl_log([(1024, 32.1, 31.9), (2**30, 8139.0, 8140.0)]))
    found = traincast.validate(path)
    assert found.total.evaluated == 2
    assert set(found.predictions.details["cluster"]) == {"a100"}


def test_what_cannot_be_validated_is_said(tmp_path, file):
    path = tmp_path / "other.csv"
    path.write_text("colour,weight\nred,1\n")
    with pytest.raises(FormatError, match=r"\(measured collectives, .*\); its first columns are colour, weight"):
        traincast.validate(path)
    with pytest.raises(ConfigError, match="grouped by 'colour'; known: gpu, op, ranks, size"):
        traincast.validate(file, by=["colour"])
    with pytest.raises(ConfigError, match="unknown cluster"):
        traincast.validate(file, "nowhere")


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        ("a100_sxm", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("nccl_allreduce_a100_azure", "a100-azure"),
        ("azure_a100", "a100"),
        ("NVIDIA A100-PCIE-40GB", None),
        ("a1000", None),
        ("l40s", None),
        ("", None),
    ],
)
def test_names_of_gpus(text, preset):
    assert preset_named_in(text, ["a100", "a100-azure", "h100"]) == preset


@pytest.mark.parametrize("kind", KINDS.entries(), ids=lambda kind: kind.name)
def test_a_kind_is_whole(kind):
    assert KINDS.get(kind.name) is kind
    assert kind.by
    assert not kind.fits(["colour"])


def test_several_files_of_one_kind_are_validated_together(tmp_path):
    rows = [(2**20, 72.5, 71.0), (2**24, 250.0, 249.0)]
    logs = [tmp_path / f"{op}.log" for op in ("all_reduce", "all_gather")]
    for log in logs:
        log.write_text(nccl_log(rows, op=log.stem))
    found = traincast.validate(logs, "a100", ["op"])
    assert (found.total.rows, found.total.evaluated) == (4, 4)
    alone = [traincast.validate(log, "a100", ["op"]) for log in logs]
    assert {group.name: group.figures for group in found.groups} == {
        group.name: group.figures for each in alone for group in each.groups
    }
    assert traincast.validate(tmp_path, "a100").total.rows == 4
    runs = tmp_path / "runs.csv"
    runs.write_text("model,gpu,num_gpus,step_time_s\nllama3-8b,H100-SXM-80GB,8,1.0\n")
    with pytest.raises(FormatError, match="another kind"):
        traincast.validate([logs[0], runs])


def test_the_name_of_a_file_says_no_cluster_of_another(tmp_path):
    for name in ("a100", "h100"):
        (tmp_path / f"{name}.csv").write_text("op,ranks,nodes,size_bytes,time_us\nall_reduce,8,1,1048576,100\n")
    found = traincast.validate(tmp_path)
    assert found.total.evaluated == 0
    assert {each.reason for each in found.skipped} == {"the GPU is not specified; give a cluster"}
    assert traincast.validate(tmp_path / "a100.csv").total.evaluated == 1
