"""torchtitan's pipelines: schedules by name, and which layers are on which virtual stage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import traincast
from traincast.dialects import draft_like
from traincast.errors import ConfigError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model

BASE = ("--model.name=llama3", "--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=16",
        "--nproc_per_node=8", "--nnodes=4")  # fmt: skip
SCHEDULES = {
    "1F1B": ("1f1b", 1),
    "GPipe": ("gpipe", 1),
    "LoopedBFS": ("looped_bfs", 2),
    "Interleaved1F1B": ("interleaved", 2),
    "InterleavedZeroBubble": ("interleaved_zb", 2),
    "ZBVZeroBubble": ("zb_v", 2),
    "DualPipeV": ("dualpipe_v", 2),
}


def draft(pp, schedule="1F1B", *more, **options):
    words = [f"--parallelism.pipeline_parallel_degree={pp}", f"--parallelism.pipeline_parallel_schedule={schedule}"]
    words += [f"--parallelism.{name}={value}" for name, value in options.items()]
    return draft_like("torchtitan", [*BASE, *words, *more])


def job(*args, **options):
    return resolve_job(draft(*args, **options).request())


@pytest.mark.parametrize(("name", "schedule"), SCHEDULES.items())
def test_schedules_by_name(name, schedule):
    """As PyTorch reads them, in any case; with two virtual stages per rank where the schedule has several."""
    for spelled in (name, name.lower()):
        found = job(4, spelled)
        assert (found.pipeline.schedule, found.parallel.vpp) == schedule
        assert sum(found.pipeline.layers_Q) == 32
    assert (
        traincast.predict(draft(4, name).under(Draft(cluster="h100")), allow_oom=True).parallel.schedule == schedule[0]
    )


def test_embedding_and_head_weigh_a_layer_each_and_the_first_stages_have_what_is_left():
    """34 = 32 layers + 2 over 4 stages are 9, 9, 8, 8, less one at each end: torchtitan's own rule."""
    assert job(4).pipeline.layers_Q == (8, 9, 8, 7)
    assert job(4, "Interleaved1F1B").pipeline.layers_Q == (4, 5, 4, 4, 4, 4, 4, 3)
    assert job(2).pipeline.layers_Q == (16, 16)
    even = job(4, pipeline_parallel_first_stage_less_layers=0, pipeline_parallel_last_stage_less_layers=0)
    assert even.pipeline.layers_Q == (8, 8, 8, 8)
    short = job(4, pipeline_parallel_first_stage_less_layers=0, pipeline_parallel_last_stage_less_layers=4)
    assert short.pipeline.layers_Q == (9, 9, 9, 5)


@given(layers=st.integers(1, 130), stages=st.integers(2, 20), first=st.integers(0, 4), last=st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_stages_weigh_alike(layers, stages, first, last):
    """Every layer is on a stage; with the weights of both ends no stage is more than one layer heavier than another."""
    made = replace(load_model("llama3-8b"), layers=layers)
    one = draft(stages, pipeline_parallel_first_stage_less_layers=first, pipeline_parallel_last_stage_less_layers=last)
    try:
        found = one.under(Draft(model=made)).request().stage_layers
    except InfeasibleError:
        assert (layers + first + last) // stages < max(first, last, 1)
        return
    assert sum(found) == layers
    weights = [found[0] + first, *found[1:-1], found[-1] + last]
    assert max(weights) - min(weights) <= 1
    assert weights == sorted(weights, reverse=True)


def test_layers_per_stage_make_the_virtual_stages():
    assert job(4, "Interleaved1F1B", pipeline_parallel_layers_per_stage=3).parallel.vpp == 3
    assert job(4, pipeline_parallel_layers_per_stage=9).pipeline.layers_Q == (8, 9, 8, 7)
    with pytest.raises(
        InfeasibleError, match=r"layers_per_stage 3 makes 12 stages for pp 4; .* 1f1b needs one on each"
    ):
        job(4, pipeline_parallel_layers_per_stage=3)
    with pytest.raises(InfeasibleError, match=r"9 makes 4 stages for pp 4; .* interleaved needs two or more"):
        job(4, "Interleaved1F1B", pipeline_parallel_layers_per_stage=9)
    with pytest.raises(InfeasibleError, match="5 makes 7 stages for pp 4"):
        job(4, "Interleaved1F1B", pipeline_parallel_layers_per_stage=5)
    with pytest.raises(InfeasibleError, match=r"do not fill pp 4 x vpp 1 = 4 stages: 13 each"):
        job(4, pipeline_parallel_last_stage_less_layers=20)


def test_other_ways_of_saying_the_stages_win():
    over = Draft(fields={"first_stage_layers": 5})
    assert resolve_job(draft(4).under(over).request()).pipeline.layers_Q == (5, 9, 9, 9)
    assert resolve_job(draft(4).under(Draft(model="llama3-70b")).request()).pipeline.layers_Q == (20, 21, 20, 19)


def test_split_points_begin_a_stage(tmp_path):
    assert job(4, pipeline_parallel_split_points="layers.6,layers.15,layers.25").pipeline.layers_Q == (6, 9, 10, 7)
    looped = job(2, "Interleaved1F1B", pipeline_parallel_split_points="layers.8,layers.16,layers.24")
    assert (looped.pipeline.layers_Q, looped.parallel.vpp) == ((8, 8, 8, 8), 2)
    file = tmp_path / "points.toml"
    file.write_text('[parallelism]\npipeline_parallel_split_points = ["layers.10"]\npipeline_parallel_degree = 2\n')
    words = [*BASE, "--job.config_file", str(file)]
    assert resolve_job(draft_like("torchtitan", words).request()).pipeline.layers_Q == (10, 22)
    for wrong in ("layers.9,layers.3", "norm", "layers.x"):
        with pytest.raises(ConfigError, match=r"split_points: is .*; write it like layers.8,layers.16"):
            draft(4, pipeline_parallel_split_points=wrong)
    with pytest.raises(InfeasibleError, match="split_points make 3 stages of 32 layers for pp 2"):
        job(2, pipeline_parallel_split_points="layers.9,layers.13")
    with pytest.raises(InfeasibleError, match="split_points make 2 stages of 32 layers"):
        job(2, pipeline_parallel_split_points="layers.40")


def test_modules_of_each_part_are_a_layout(tmp_path):
    layers = [f"layers.{index}" for index in range(32)]
    parts = [["tok_embeddings"], layers[:20], layers[20:], ["norm", "lm_head"]]
    file = tmp_path / "parts.toml"
    file.write_text(f"[parallelism]\npipeline_parallel_degree = 4\nmodule_fqns_per_model_part = {parts}\n")
    words = [*BASE, "--job.config_file", str(file)]
    found = resolve_job(draft_like("torchtitan", words).request())
    assert (found.pipeline.layers_Q, str(found.layout)) == ((0, 20, 12, 0), "E|t*20|t*12|L")
    flags = job(4, "1F1B", "--parallelism.module_fqns_per_model_part", str(parts))
    assert flags.layout == found.layout
    for wrong in ("[['tok_embeddings', 'layers.1'], ['norm', 'output']]", "x", "[[1]]", "[]", "[['vision_encoder']]"):
        with pytest.raises(ConfigError, match=r"module_fqns_per_model_part: is .*; write lists of modules"):
            draft(2, "1F1B", "--parallelism.module_fqns_per_model_part", wrong)


def test_what_has_no_effect_is_said():
    def unused(one):
        return [note.text for note in one.notes if note.text.startswith("no effect given the other settings")]

    assert not unused(draft(4))
    assert unused(draft(1))[0].endswith("pipeline: parallelism.pipeline_parallel_schedule")
    points = draft(
        4, pipeline_parallel_split_points="layers.6,layers.15,layers.25", pipeline_parallel_layers_per_stage=2
    )
    assert unused(points)[0].endswith("pipeline: parallelism.pipeline_parallel_layers_per_stage")
    assert "expert_parallel_overlap" in unused(draft(4, pipeline_parallel_expert_parallel_overlap="true"))[0]
    for word, on in (("true", True), ("false", False)):
        pair = draft(4, "DualPipeV", pipeline_parallel_expert_parallel_overlap=word)
        assert pair.fields["moe_a2a_overlap"] is on
        assert not unused(pair)


def test_schedules_that_pytorch_does_not_compile_are_warned_of():
    for name in SCHEDULES:
        warned = [note.code for note in draft(4, name, "--compile.enable=true").warnings]
        assert warned == (
            ["pytorch-would-refuse"] if name in ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV") else []
        )
        assert not draft(4, name).warnings
