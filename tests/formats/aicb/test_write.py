"""AICB files that are written: byte for byte those of AICB itself, and with our times the job's own computation."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import traincast
from support import ALONE
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.formats.aicb.conventions import GENERATIONS, Conventions, row_of
from traincast.formats.aicb.grammar import Column, load
from traincast.job.options import StepOptions, make_options
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.share import rank_share
from traincast.model.model import Attention, Experts, Latent, Model
from traincast.model.structure import layer_blocks, parts_of
from traincast.report.end_to_end import simai_end_to_end
from traincast.workload.words import Group, Operation, Phase

EXAMPLES = Path(__file__).parents[3] / "examples"
SAMPLE = "d4d801b96c62f65434987924514950bc3f856138ef616c2aa3fcdfac8c4cec34"

SECTIONS = {
    "Emb": "799.5",
    "layernorm": "70",
    "atten_qkv": "889.123",
    "atten_flash": "512.001",
    "atten_linear": "349",
    "layernorm2": "71",
    "mlp_linear_1": "1408",
    "mlp_gelu": "257",
    "mlp_linear_2": "742.7771",
    "layernorm_post": "70",
}
LATENT_SECTIONS = {
    "attention_linear_q_lora": "101.5",
    "attention_q_column": "202.7",
    "attention_linear_kv_lora": "55.5",
    "attention_kv_column": "66.3",
    "attention_o_row": "77.7",
}

CASES = {
    "dense": {},
    "dense_rec": {"recompute": "selective"},
    "dense_nosp": {"sequence_parallel": False},
    "dense_nosp_rec": {"sequence_parallel": False, "recompute": "selective"},
    "tp1": {"tp": 1},
    "pp1": {"pp": 1},
    "moe": {"experts": 8, "ep": 8},
    "moe_ep1": {"experts": 8},
    "moe_ep4_rec": {"experts": 8, "ep": 4, "recompute": "selective"},
    "moe_tp1": {"tp": 1, "experts": 8, "ep": 8},
    "moe_tp1_ep1": {"tp": 1, "experts": 8, "micro_batch": 1},
    "mla": {"latent": True, "experts": 16, "ep": 4, "topk": 4, "shared": True, "dense_layers": 1, "pp": 1},
    "mla_noshared": {
        **{"latent": True, "experts": 16, "ep": 4, "topk": 4, "dense_layers": 1},
        "recompute": "selective",
    },
    "mla_tp1": {"latent": True, "experts": 16, "ep": 8, "topk": 4, "shared": True, "tp": 1},
}

WRITTEN_BY_AICB = [
    ("v1.1", "dense", "281f5ab38e3026aa"),
    ("v1.1", "dense_rec", "2fe503e3929e74f7"),
    ("v1.1", "dense_nosp", "7ffcdf730b84ecc8"),
    ("v1.1", "dense_nosp_rec", "7ffcdf730b84ecc8"),
    ("v1.1", "tp1", "9394f3665e677160"),
    ("v1.1", "pp1", "e387038ad70aeff4"),
    ("v1.1", "moe", "d708db653030486e"),
    ("v1.1", "moe_ep1", "f81d8ee0b0d1088d"),
    ("v1.1", "moe_ep4_rec", "2b7019916bf06386"),
    ("v1.1", "moe_tp1", "475f9e050abdd82e"),
    ("v1.1", "moe_tp1_ep1", "e4f8e0424bb9f358"),
    ("vpp", "dense", "97f81ca025fbb202"),
    ("vpp", "dense_rec", "705ddf93056450a6"),
    ("vpp", "dense_nosp", "4b2ab7d68c4dc03c"),
    ("vpp", "dense_nosp_rec", "550bee023621f855"),
    ("vpp", "tp1", "8234c197b039d0a5"),
    ("vpp", "pp1", "22e6dddbc0175752"),
    ("vpp", "moe", "e19633b57599784b"),
    ("vpp", "moe_ep1", "64b3d6849095e019"),
    ("vpp", "moe_ep4_rec", "2ba33204ca1e9d30"),
    ("vpp", "moe_tp1", "683cf07af84175ac"),
    ("vpp", "moe_tp1_ep1", "d2558a275285a245"),
    ("pp_comm", "dense", "b4d95fe8089694c9"),
    ("pp_comm", "dense_rec", "7a57963b378b389b"),
    ("pp_comm", "dense_nosp", "0c532e3563d9c04d"),
    ("pp_comm", "dense_nosp_rec", "49e2eed5f6d27f78"),
    ("pp_comm", "tp1", "b555d1278b798828"),
    ("pp_comm", "pp1", "75f51f6c8f9d10bc"),
    ("pp_comm", "moe", "1830593e8cb65ef6"),
    ("pp_comm", "moe_ep1", "3678b767af5e12e8"),
    ("pp_comm", "moe_ep4_rec", "de6bffb4a1656612"),
    ("pp_comm", "moe_tp1", "6e28c9de8fd3520c"),
    ("pp_comm", "moe_tp1_ep1", "4faabdb5e64e57e6"),
    ("pp_comm", "mla", "4aff824f942c69b1"),
    ("pp_comm", "mla_noshared", "ad2fce16118ff8aa"),
    ("pp_comm", "mla_tp1", "eef6ffd1366d5f33"),
]
"""SHA-256 (its first half) of what aliyun/aicb wrote for the cases at commits 7a5ac72, af5cf2b and 23eec3c, with 64
GPUs, a global batch of 64 and the times above."""


def request(case=None, **changes):
    said = {**CASES.get(case, {}), **changes}
    routed = said.get("experts")
    experts = routed and Experts(
        experts=routed,
        topk=said.get("topk", 2),
        ffn_hidden=4096,
        shared_ffn_hidden=4096 if said.get("shared") else 0,
        first_dense_layers=said.get("dense_layers", 0),
    )
    latent = Latent(q_rank=512, kv_rank=256, rope_head_dim=64, nope_head_dim=128, v_head_dim=128)
    model = Model(
        name="small",
        layers=said.get("layers", 8),
        hidden=1024,
        attention=Attention(heads=16, kv_heads=16, head_dim=64, latent=latent if said.get("latent") else None),
        ffn_hidden=4096,
        gated=False,
        vocab=50257,
        tied_embeddings=said.get("tied", False),
        norm="layer",
        experts=experts,
    )
    tp = said.get("tp", 4)
    return JobRequest(
        model=model,
        gpus=64,
        seq_length=2048,
        global_batch=64,
        micro_batch=said.get("micro_batch", 2),
        tp=tp,
        pp=said.get("pp", 2),
        vpp=said.get("vpp", 1),
        cp=said.get("cp", 1),
        ep=said.get("ep", 1) if routed else None,
        etp=said.get("etp", tp) if routed else None,
        zero=said.get("zero"),
        sequence_parallel=said.get("sequence_parallel", True) if tp > 1 else None,
        recompute=said.get("recompute", "none"),
        framework="megatron-core-2025",
        deduplicated_dispatch=False,
    )


def aiob(folder, sections):
    """Write a file of AIOB's times."""
    lines = [f"{name}:\n    time_gpu_max: 9999\n    time_gpu_avg: {time}\n" for name, time in sections.items()]
    update = "param_time:\n    time_gpu_max: 23746\n    time_gpu_min: 16647\n    time_gpu_avg: 17374\n"
    path = folder / "times.txt"
    path.write_text("train_iter:10\n" + "".join(lines) + update)
    return path


def written(folder, job, **options):
    out = folder / "workload.txt"
    done = traincast.convert(job, out, "aicb", force=True, **options)
    return load(out), done


def test_the_job_behind_the_sample_is_written_byte_for_byte(tmp_path):
    out = tmp_path / "workload.txt"
    traincast.convert(EXAMPLES / "aicb_gpt405b_1024gpu.toml", out, "aicb")
    assert hashlib.sha256(out.read_bytes()).hexdigest() == SAMPLE
    assert out.read_bytes() == (EXAMPLES / "aicb_gpt_405b_1024gpu.txt").read_bytes()


@pytest.mark.parametrize(("generation", "case", "digest"), WRITTEN_BY_AICB)
def test_a_job_is_written_as_aicb_writes_it(generation, case, digest, tmp_path):
    sections = {**SECTIONS, **(LATENT_SECTIONS if CASES[case].get("latent") else {})}
    out = tmp_path / "workload.txt"
    options = {"generation": generation, "times": str(aiob(tmp_path, sections)), "stage": "0"}
    traincast.convert(request(case), out, "aicb", **options)
    assert hashlib.sha256(out.read_bytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("generation", "case", "digest"),
    [
        ("vpp", "moe_ep4_rec", "9dd2903e109e6a57"),
        ("pp_comm", "mla", "88d98a2812466009"),
        ("pp_comm", "dense", "8ad0f9cae1375642"),
    ],
)
def test_simai_runs_what_is_written_and_its_own_file_of_it_is_ours(generation, case, digest, tmp_path):
    """Digests are of what SimAI-Analytical 1.6 wrote (H100, CX7), with 0.00 where it prints -nan."""
    sections = {**SECTIONS, **(LATENT_SECTIONS if CASES[case].get("latent") else {})}
    written(tmp_path, request(case), generation=generation, times=str(aiob(tmp_path, sections)), stage="0")
    report = api.simai(tmp_path / "workload.txt", make_options(cluster="h100"))
    found = simai_end_to_end(report, "workload.txt")
    assert hashlib.sha256(found).hexdigest()[:16] == digest


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dense", "dense_nosp", "tp1", "pp1", "moe", "moe_tp1", "mla", "mla_tp1"])
@pytest.mark.parametrize("changes", [{}, {"recompute": "full"}])
def test_our_times_are_those_of_the_jobs_own_step(case, changes, tmp_path):
    job = request(case, **{"recompute": "none", **changes})
    file, _ = written(tmp_path, job, vpp="1")
    rows = traincast.simulate(tmp_path / "workload.txt", make_options(cluster="h100", **ALONE))
    own = traincast.predict(job, "h100", options=StepOptions(**ALONE))
    stages = [{rank.stage: rank.compute_s for rank in result.ranks} for result in (rows, own)]
    for stage, compute_s in stages[1].items():
        # Every stage updates as many parameters as the largest, and what is not measured has 1 ns.
        assert stages[0][stage] == pytest.approx(compute_s, rel=0.01)
    assert rows.parallel == replace(own.parallel, etp=rows.parallel.etp)
    blocks = [row for row in file.rows if row.name == "embedding_layer"]
    assert len(blocks) == own.parallel.microbatches


def test_a_job_says_its_virtual_stages_and_one_without_has_those_of_aicb(tmp_path):
    assert written(tmp_path, request(vpp=2))[0].header.vpp == 2
    file, done = written(tmp_path, request())
    assert file.header.vpp == 4
    assert "aicb-vpp" in {note.code for note in done.lost}
    assert written(tmp_path, request(), vpp="1")[0].header.vpp == 1
    assert written(tmp_path, request(), generation="v1.1")[0].header.vpp is None


def test_rows_of_experts_are_those_of_either_dispatcher(tmp_path):
    def rows(**options):
        return sum(row.name == "mlp_moelayer" for row in written(tmp_path, request("moe"), **options)[0].rows)

    assert rows() * 7 == rows(moe_rows="7") * 5 == rows(generation="vpp") * 5


def test_stages_that_differ_are_said_and_the_commonest_is_written(tmp_path):
    job = request("mla_noshared", layers=9, dense_layers=4, pp=4, recompute="none")
    job = replace(job, stage_layers=(4, 2, 2, 1), vpp=None)
    file, done = written(tmp_path, job)
    assert "aicb-one-stage" in {note.code for note in done.lost}
    microbatches = done and file.header.ga
    assert sum(row.name == "attention_o_row" for row in file.rows) == 2 * microbatches
    first, _ = written(tmp_path, job, stage="0")
    assert not any(row.name == "mlp_moelayer" for row in first.rows)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cp": 2}, "context parallelism"),
        ({"zero": 3, "pp": 1}, "ZeRO stage 3"),
        ({"experts": 8, "ep": 2, "etp": 1}, "etp 1"),
        ({"experts": 8, "ep": 2, "sequence_parallel": False}, "sequence_parallel"),
    ],
)
def test_what_aicb_has_no_rows_for_is_refused(changes, reason, tmp_path):
    with pytest.raises(FormatError, match=reason):
        written(tmp_path, request(**changes))
    assert not (tmp_path / "workload.txt").exists()


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ("Emb=1", "no mean time of 'param_time'"),
        ("Emb=1,attention=1,mlp=-2,param_time=1", "below zero"),
        ("Emb=1,attention", "SECTION=MICROSECONDS"),
        ("Emb=1,param_time=2,param_time.min=1,mlp=3", "no section of attention"),
    ],
)
def test_times_that_are_not_there_are_named(times, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        written(tmp_path, request(), times=times)


def test_a_file_of_times_that_is_damaged_has_its_line(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("train_iter:10\nEmb:\n    time_gpu_avg: fast\n")
    with pytest.raises(FormatError, match=r"times\.txt:3.*'fast' is not a number"):
        written(tmp_path, request(), times=str(path))
    path.write_text("nothing\n")
    with pytest.raises(FormatError, match="no AIOB times"):
        written(tmp_path, request(), times=str(path))


@pytest.mark.parametrize("options", [{"stage": "2"}, {"vpp": "0"}, {"moe_rows": "6"}, {"stage": "x"}])
def test_options_out_of_range_are_refused(options, tmp_path):
    with pytest.raises(ConfigError):
        written(tmp_path, request(), **options)


def exchanged(source, groups, phases=tuple(Phase), stage=0):
    """Return the bytes that a rank of a stage communicates over some groups in some phases, by group and operation."""
    if isinstance(source, Path):
        result = traincast.simulate(source, make_options(cluster="h100", unfold=True))
    else:
        result = traincast.predict(source, "h100", options=StepOptions(unfold=True))
    program, ops = result.program, result.program.ops
    found = Counter()
    for row in program.row_N[program.rank_slice(int((program.stage_R == stage).argmax()))].tolist():
        group, size = Group(int(ops.group_T[row])), int(ops.size_bytes_T[row])
        group = Group.TP if group is Group.ETP else group
        # The counts of tokens that AICB gathers before it dispatches them are some hundred bytes.
        if group in groups and ops.phase_T[row] in phases and size > 4096:
            found[group.name, Operation(int(ops.operation_T[row])).name] += size * float(ops.repeats_T[row])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dense", "dense_nosp", "tp1", "moe_ep4_rec", "moe_tp1"])
def test_activations_are_exchanged_as_the_job_exchanges_them_where_aicb_says_it(case, tmp_path):
    job = request(case, pp=4, recompute="none", layers=12, **({"ep": 4} if CASES[case].get("ep") else {}))
    written(tmp_path, job, vpp="1")
    for groups, phases in (((Group.EP, Group.PP), tuple(Phase)), ((Group.TP,), (Phase.FORWARD,))):
        rows, own = (exchanged(each, groups, phases, stage=1) for each in (tmp_path / "workload.txt", job))
        # A row has the tokens of an exchange, not the weights of a router that go with them.
        assert rows == pytest.approx(own, rel=1e-3 if Group.EP in groups else 1e-9)
        assert own or case in ("tp1", "moe_tp1")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dense", "tp1", "moe_ep4_rec", "moe_tp1", "mla_noshared"])
def test_gradients_and_parameters_are_those_of_the_job_on_request(case, tmp_path):
    job = request(case, pp=1, micro_batch=1, recompute="none", dense_layers=0)
    groups = (Group.DP, Group.EDP)
    own = exchanged(job, groups)
    written(tmp_path, job, vpp="1", parameters="job")
    assert exchanged(tmp_path / "workload.txt", groups) == pytest.approx(own, rel=1e-9)
    written(tmp_path, job, vpp="1")
    assert exchanged(tmp_path / "workload.txt", groups) != pytest.approx(own, rel=1e-3)


@pytest.mark.slow
def test_a_result_is_converted_like_its_job(tmp_path):
    traincast.convert(EXAMPLES / "llama3_70b_512gpu.toml", tmp_path / "job.txt", "aicb")
    done = CliRunner().invoke(
        cli, ["predict", str(EXAMPLES / "llama3_70b_512gpu.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    )
    assert done.exit_code == 0
    traincast.convert(tmp_path / "run", tmp_path / "result.txt", "aicb")
    assert (tmp_path / "result.txt").read_bytes() == (tmp_path / "job.txt").read_bytes()


def test_what_simai_cannot_take_is_said(tmp_path):
    big = replace(request(), seq_length=2**21, micro_batch=16, global_batch=1024)
    _, done = written(tmp_path, big)
    assert {"simai-long-compute", "simai-message", "simai-size"} <= {note.code for note in done.lost}
    assert not any(note.code.startswith("simai") for note in written(tmp_path, request())[1].lost)


def test_options_in_a_job_file_are_overridden_and_checked(tmp_path):
    text = (EXAMPLES / "aicb_gpt405b_1024gpu.toml").read_text()
    job = tmp_path / "job.toml"
    job.write_text(text)
    assert written(tmp_path, job)[0].header.vpp is None
    assert written(tmp_path, job, generation="vpp")[0].header.vpp == 8
    job.write_text(
        text.replace("[convert.aicb]", "[convert.abc]").replace("[convert.aicb.times]", "[convert.abc.times]")
    )
    with pytest.raises(UnknownNameError, match="abc"):
        written(tmp_path, job)
    job.write_text(text.replace('generation = "v1.1"', 'generation = ["v1.1"]'))
    with pytest.raises(ConfigError, match=r"convert\.aicb\.generation"):
        written(tmp_path, job)


def test_times_of_a_job_file_are_found_beside_it(tmp_path):
    aiob(tmp_path, SECTIONS)
    text = (EXAMPLES / "aicb_gpt405b_1024gpu.toml").read_text()
    job = tmp_path / "job.toml"
    job.write_text(text[: text.index("[convert.aicb.times]")] + 'times = "times.txt"\n')
    file, _ = written(tmp_path, job)
    assert next(row for row in file.rows if row.name == "embedding_layer").forward.compute_s == pytest.approx(799.5e-6)


def test_astra_sim_reads_a_header_without_degrees(tmp_path):
    file, done = written(tmp_path, request("pp1"), generation="astra-sim-1.0")
    header = (tmp_path / "workload.txt").read_text().splitlines()[0]
    assert (
        header == "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 checkpoints: 0 checkpoint_initiates: 0"
    )
    cells = [row.cell(column) for row in file.rows for column in Column]
    assert all(cell.suffix is None for cell in cells)
    assert all((cell.size_bytes > 0) == (cell.operation is not Operation.NONE) for cell in cells)
    assert "astra-sim-degrees" in {note.code for note in done.lost}
    groups = (Group.TP, Group.DP)
    named = exchanged(tmp_path / "workload.txt", groups, (Phase.FORWARD,))
    written(tmp_path, request("pp1"))
    assert exchanged(tmp_path / "workload.txt", groups, (Phase.FORWARD,)) == named


@pytest.mark.parametrize(("case", "reason"), [("dense", "no pipelines"), ("mla", "no experts")])
def test_what_astra_sim_does_not_know_is_refused(case, reason, tmp_path):
    with pytest.raises(FormatError, match=reason):
        written(tmp_path, request(case), generation="astra-sim-1.0")


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        (
            "dense",
            {
                "attention_column": {"input_layernorm", "linear_qkv", "rotary_pos_emb"},
                "attention_row": {"core_attention", "linear_proj", "self_attn_bda"},
                "mlp_column": {"pre_mlp_layernorm", "linear_fc1", "activation_func"},
                "mlp_row": {"linear_fc2", "mlp_bda"},
            },
        ),
        (
            "mla",
            {
                "attention_linear_q_lora": {"input_layernorm", "linear_q_down_proj"},
                "attention_q_column": {"linear_q_up_proj"},
                "attention_linear_kv_lora": {"linear_kv_down_proj"},
                "attention_kv_column": {"linear_kv_up_proj", "rotary_pos_emb"},
                "attention_o_row": {"core_attention", "linear_proj", "self_attn_bda"},
                "mlp_moelayer": {
                    *("pre_mlp_layernorm", "router", "token_dispatcher", "mlp_bda"),
                    *("linear_fc1", "activation_func", "linear_fc2"),
                },
                "mlp_column": {"linear_fc1", "activation_func"},
                "mlp_row": {"linear_fc2"},
            },
        ),
        ("dense_nosp", {"attention_layer": {"core_attention", "linear_qkv"}, "mlp_layer": {"linear_fc1", "mlp_bda"}}),
    ],
)
def test_every_module_of_a_layer_has_its_row(case, rows, tmp_path):
    job = resolve_job(request(case))
    layer = layer_blocks(job.model, job.model.layers - 1)
    conventions = Conventions(job, GENERATIONS["pp_comm"], [layer])
    found = {}
    for part in parts_of(layer, rank_share(job)):
        found.setdefault(row_of(part.name, conventions, layer), set()).add(part.name.rpartition(".")[2])
    assert set(found) == set(rows)
    assert all(modules <= found[row] for row, modules in rows.items())
    if case != "dense_nosp":
        assert found == rows
    file, _ = written(tmp_path, request(case))
    assert set(found) <= {row.name for row in file.rows}


def test_times_of_a_row_are_those_of_its_modules_and_what_is_recomputed_comes_with_the_input_gradient(tmp_path):
    def cells(**changes):
        file, _ = written(tmp_path, request("dense", **changes))
        return {row.name: [row.cell(column).compute_s for column in Column] for row in file.rows}

    plain, core, full = (cells(recompute=kind) for kind in ("none", "selective", "full"))
    for name, (forward, input_grad, weight_grad) in plain.items():
        if name.startswith(("attention", "mlp")):
            assert full[name] == pytest.approx([forward, input_grad + forward, weight_grad], abs=3e-9)
            again = core[name][1] - input_grad
            assert again == 0 if name != "attention_row" else 0 < again < forward
    # Attention's core has no weights; of the projections the wider one takes longer.
    assert plain["attention_row"][2] < plain["attention_column"][2] < plain["mlp_column"][2]
    assert plain["final_column"] == full["final_column"]
