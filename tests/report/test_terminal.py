import io
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace
from rich.console import Console

import traincast
from traincast.diagnostics import Note
from traincast.formats.contract import Inspection, Total
from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.gpu import Gpu
from traincast.report.terminal.catalog import print_cluster_numbers, print_clusters
from traincast.report.terminal.inspection import print_inspections
from traincast.report.terminal.step import print_result
from traincast.simulation.result import BREAKDOWN_KEYS
from traincast.simulation.result_records import ParallelFacts, RankResult

ONE = ("world_size", "dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatches")
LINK = Link(bandwidth_bytes_per_s=360e9, base_latency_s=3.5e-6, hop_latency_s=2e-7)
CLUSTER = Cluster(
    name="h100",
    description="DGX H100 with a 400 Gb/s NIC per GPU",
    gpu=Gpu(name="H100 SXM", bf16_dense_flops_per_s=989e12, hbm_bytes=80_000_000_000, hbm_bytes_per_s=3.35e12),
    gpus_per_node=8,
    intra=LINK,
    inter=LINK,
    sources=(("gpu.hbm_bytes", "NVIDIA datasheet " * 8),),
)
INSPECTION = Inspection(
    path="samples/" + "long_" * 20 + ".txt",
    format="aicb",
    generation="AICB, 12 columns",
    confidence=0.95,
    evidence=("the header has no vpp",),
    counts={"rows": 1300, "blocks": 16},
    layout={"tp": 8, "pp": 16, "vpp": None},
    totals=(
        Total(group="compute", what="forward", count=3, size_bytes=0, time_s=0.25),
        Total(group="tp", what="all_gather", count=1200, size_bytes=2**34, time_s=None),
    ),
    oddities=(Note("neg", "a negative size " * 9, "file.txt:7"),),
)


def plain_and_narrow(output):
    assert "\x1b" not in output
    assert max(len(line) for line in output.splitlines()) <= 80
    return output


def test_the_step_comes_first(result, shown):
    lines = plain_and_narrow(shown(print_result, result)).splitlines()
    assert lines[0].rstrip() == "Step 18.7 us"
    assert [line.strip() for line in lines[1:6]] == [
        "layout    4 ranks: tp 2, pp 2; 2 microbatches; schedule 1f1b",
        "cluster   h100",
        "measured  19.8 us; the simulation is 5.6 % below",
        "interval  17.6 us to 20.9 us (90 %)",
        "MFU       41.2 % of the 16-bit peak",
    ]


def test_the_breakdown_sums_to_the_step(result, shown):
    output = shown(print_result, result)
    section = output.split("Where the time goes")[1].split("Stages")[0]
    found = re.findall(r"^  (\w[\w ]*?) +([\d.]+) +([\d.]+) % *(\u2588*)", section, re.MULTILINE)
    assert [label for label, *_ in found] == ["compute", "exposed tp", "exposed pp", "bubble", "other"]
    assert sum(float(time_us) for _, time_us, *_ in found) == pytest.approx(18.7, abs=0.005)
    assert sum(float(share) for _, _, share, _ in found) == pytest.approx(100, abs=0.3)
    assert len(found[0][3]) > len(found[3][3]) > len(found[4][3]) > 0
    assert "none: exposed cp, exposed ep, exposed dp" in section


def test_a_terminal_without_unicode_gets_ascii(result, shown):
    assert "####" in shown(print_result, result, encoding="ascii")


def test_colour_on_a_terminal_only(result):
    stream = io.StringIO()
    print_result(Console(file=stream, width=80, force_terminal=True, color_system="standard", _environ={}), result)
    assert "\x1b[33m" in stream.getvalue()


def test_collectives_stragglers_and_what_if(result, shown):
    output = shown(print_result, result)
    section = output.split("Communication")[1].split("Stragglers")[0]
    assert section.count("all-reduce") == 8
    assert section.index("1 GiB") < section.index("512 MiB") < section.index("8 MiB")
    assert "and 3 more, 29.36 us in all" in section
    assert re.search(r"\b2 +1 +1\.25x +2\.2 us", output)
    assert re.search(r"no stragglers +16\.500 +2\.200", output)


def test_notes_wrap_and_stay_as_written(result, shown):
    output = shown(print_result, result, verbose=True)
    assumptions = output.split("Assumptions")[1].split("Warnings")[0].strip("\n ").splitlines()
    assert assumptions[0].startswith("- ga") and len(assumptions) > 1
    assert all(line.startswith("    ") for line in assumptions[1:])
    assert "(job, one.txt:1)" in assumptions[-1]
    warnings = output.split("Warnings")[1]
    assert warnings.count("[red]row") == 3
    assert "and 6 more of this kind" in warnings


def test_every_link_that_holds_something_back_is_shown(result, shown):
    links = tuple(Note("shared-links", f"held back by leaf {number}") for number in range(7))
    output = shown(print_result, replace(result, assumptions=(*links, *[Note("other", "same")] * 5)))
    assert output.count("held back by leaf") == 7
    assert output.count("- same") == 3
    assert "and 2 more of this kind" in output


def test_a_line_per_stage_for_the_rank_that_ends_last(result, shown):
    section = shown(print_result, result).split("Stages")[1].split("Communication")[0]
    assert re.search(r"^ +0 +0 +6\.600 +4\.400 +0\.000 +7\.700 +14\.300 +3 GiB", section, re.MULTILINE)
    assert re.search(r"^ +1 +2 +8\.800 +2\.200 +6\.600 +1\.100 +18\.700 +4 GiB", section, re.MULTILINE)


def many_stages(result, count):
    def rank(stage, late):
        compute_s = 2.0 if stage == 0 else 1.0
        values = dict.fromkeys(BREAKDOWN_KEYS, 0.0) | {"compute": compute_s, "bubble": 1e-3 * stage}
        return RankResult(
            rank=10 * stage + late,
            stage=stage,
            represents=1,
            end_s=compute_s + late,
            compute_s=compute_s,
            wait_s=0.0,
            breakdown_s=values,
        )

    ranks = tuple(rank(stage, late) for stage in range(count) for late in (0, 1))
    return replace(result, ranks=ranks, parts=(), gpu_time=(), iteration_time_s=10.0, memory_bytes=None)


def test_like_stages_are_one_line_with_their_ranges(result, shown):
    section = plain_and_narrow(shown(print_result, many_stages(result, 64))).split("Stages")[1].split("Commun")[0]
    assert re.findall(r"^ +(\d+(?:-\d+)?) ", section, re.MULTILINE) == ["0", "1-63"]
    assert "0.00100-0.0630" in section


def test_stages_that_differ_have_a_line_each(result, shown):
    told = many_stages(result, 3)
    section = shown(print_result, told).split("Stages")[1].split("Communication")[0]
    assert len(re.findall(r"^ +\d+ ", section, re.MULTILINE)) == 3


def test_a_bare_result(result, shown):
    bare = replace(
        result,
        parallel=ParallelFacts(**dict.fromkeys(ONE, 1), schedule="1f1b"),
        ranks=(),
        collectives=(),
        stragglers=(),
        what_if=(),
        assumptions=(),
        warnings=(),
        cluster=replace(result.cluster, gpus_used_per_node=None),
        measured_s=None,
        interval=None,
        mfu=None,
    )
    output = shown(print_result, bare)
    assert [line.strip() for line in output.splitlines()[1:3]] == [
        "layout   1 rank; 1 microbatch; schedule 1f1b",
        "cluster  h100",
    ]
    assert "Stages" not in output and "Warnings" not in output


def test_files_cannot_steer_the_terminal(result, shown):
    result = replace(result, warnings=(Note("a", "name \x1b[2J \udcff", "a\x07"),))
    assert r"name \x1b[2J \udcff" in plain_and_narrow(shown(print_result, result))


def test_inspection(shown):
    output = plain_and_narrow(shown(print_inspections, [INSPECTION]))
    assert "aicb: AICB, 12 columns (confidence 95 %)" in output
    assert "1,300 rows, 16 blocks" in output
    assert "tp 8, pp 16" in output and "not specified: vpp" in output
    assert re.search(r"tp +all-gather +1,200 +16 GiB +not specified", output)
    assert re.search(r"compute +forward +3 +250 ms", output)
    assert "(file.txt:7)" in output


def test_clusters(shown):
    output = plain_and_narrow(shown(print_clusters, [CLUSTER]))
    assert output.startswith("h100: DGX H100")
    assert "8 x H100-SXM-80GB (989 TFLOP/s bf16, 80 GB, 3.35 TB/s) per node" in output
    assert re.search(r"inside a node +360 GB/s +3\.5 us +200 ns", output)
    assert output.splitlines()[-1] == "traincast clusters NAME... shows every number with its source"
    both = plain_and_narrow(shown(print_clusters, [CLUSTER, replace(CLUSTER, name="free", ideal=True)]))
    assert "communication takes no time" in both


def test_every_number_of_a_cluster_has_its_unit_and_source(shown):
    fabric = FabricSpec(kind="fat-tree", nodes_per_leaf=4, oversubscription=(2.0,))
    cluster = replace(CLUSTER, fabric=fabric, sources=(*CLUSTER.sources, ("fabric", "set in c.toml")))
    output = plain_and_narrow(shown(print_cluster_numbers, [cluster]))
    for name, value, source in (
        ("gpus_per_node", "8", "-"),
        ("gpu.bf16_dense_flops_per_s", "989 TFLOP/s", "-"),
        ("gpu.hbm_bytes", "80 GB", r"\[1\]"),
        ("fabric.kind", "fat-tree", r"\[2\]"),
        ("fabric.oversubscription", "2", r"\[2\]"),
        ("intra.bandwidth_bytes_per_s", "360 GB/s", "-"),
        ("inter.hop_latency_s", "200 ns", "-"),
    ):
        assert re.search(rf"^  {name} +{value} +{source}$", output, re.MULTILINE), name
    assert "fabric.queue_pairs" not in output
    assert "  [1] NVIDIA datasheet" in output
    assert "  [2] set in c.toml" in output
    free = shown(print_cluster_numbers, [replace(CLUSTER, ideal=True)])
    assert "intra." not in free
    assert re.search(r"^  ideal +true", free, re.MULTILINE)


def test_rich_and_numpy_are_loaded_only_when_used():
    code = (
        "import sys, traincast.report.terminal, traincast.report.json, traincast.report.files;"
        "print(sorted({'rich', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_wide_numbers_stay_whole_in_80_columns(result, shown):
    wide = replace(
        result.collectives[0],
        op="all_gather",
        size_bytes=1023 * 2**20,
        ranks=16384,
        nodes=2048,
        count=1_234_567,
        time_s=1.0745e-3,
        protocol="Simple",
    )
    output = plain_and_narrow(shown(print_result, replace(result, collectives=(wide,))))
    for cell in ("1023 MiB", "16384/2048", "1,234,567", "1.075 ms", "1327 s"):
        assert cell in output


def test_bars_are_drawn_to_the_width_of_the_terminal(result):
    times = dict.fromkeys(result.breakdown_s, 0.0) | {"compute": 3.0, "bubble": 1.0}
    result = replace(result, breakdown_s=times, iteration_time_s=4.0)
    for width in (45, 60, 80, 120):
        stream = io.StringIO()
        print_result(Console(file=stream, width=width, force_terminal=False, _environ={}), result)
        drawn = stream.getvalue().split("Where the time goes\n")[1].split("none:")[0].splitlines()
        assert len(drawn) == 4 and max(map(len, drawn)) <= width
        long, short = (line.count("\u2588") for line in drawn[1:3])
        assert long >= 10 and long == pytest.approx(3 * short, abs=2)
        assert width < 80 or (long, short) == (27, 9)


def test_the_communication_table_breaks_no_word_in_a_narrow_terminal(result):
    wide = replace(result.collectives[0], op="reduce_scatter", algorithm="hierarchical", count=1_234)
    result = replace(result, collectives=(wide, *result.collectives))
    for width in (50, 60, 70, 80, 90, 100):
        stream = io.StringIO()
        print_result(Console(file=stream, width=width, force_terminal=False, _environ={}), result)
        section = stream.getvalue().split("Communication")[1].split("Stragglers")[0]
        assert max(map(len, section.splitlines())) <= width
        words = re.findall(r"[A-Za-z]+", section)
        assert {"group", "operation", "reduce", "scatter", "total"} <= set(words), width
        assert ("columns that do not fit: " in section) == (width < 90)
    assert "algo" in section and "each" in section


@pytest.mark.parametrize(
    ("files", "shown_places"),
    [
        (["runs/a/t.txt"], ["t.txt:4", "t.txt[2]", "t.txt", "elsewhere.txt:1"]),
        (["runs/a/t.txt", "runs/b/t.txt"], ["a/t.txt:4", "a/t.txt[2]", "a/t.txt", "elsewhere.txt:1"]),
        (["runs/a/t.txt", "t.txt"], ["a/t.txt:4", "a/t.txt[2]", "a/t.txt", "elsewhere.txt:1"]),
    ],
)
def test_places_show_as_much_of_the_path_as_tells_the_files_apart(result, shown, files, shown_places):
    places = ["runs/a/t.txt:4", "runs/a/t.txt[2]", "runs/a/t.txt", "elsewhere.txt:1"]
    inputs = tuple(replace(result.inputs[0], path=path) for path in files)
    notes = tuple(Note(f"code{index}", "Odd", place) for index, place in enumerate(places))
    output = shown(print_result, replace(result, inputs=inputs, warnings=notes))
    assert re.findall(r"- Odd \((.*)\)", output) == shown_places


def test_one_of_a_thing_is_in_the_singular(shown):
    one = replace(INSPECTION, counts={"microbatches": 1, "layers_per_microbatch": 1, "loss": 1, "leaves": 1, "rows": 2})
    assert "1 microbatch, 1 layer per microbatch, 1 loss, 1 leaf, 2 rows" in shown(print_inspections, [one])


def test_degrees_that_all_other_layouts_share_are_left_out_of_their_table(shown):
    profile = "examples/megatron_moe_profile_rank7.txt"
    result = traincast.simulate(profile, cluster="h100", suggest=True)
    text = shown(print_result, result, width=120)
    table = text[text.index("Other layouts that the files allow") :].splitlines()
    assert table[1].split() == ["dp", "pp", "ep", "microbatches", "ranks", "step,", "ms"]
    assert len(result.other_layouts) == len([line for line in table[2 : table.index("")] if line])
    known = traincast.simulate(profile, cluster="h100", suggest=True, pp=4, dp=4, ep=4, microbatches=16)
    assert "Other layouts" not in shown(print_result, known)
