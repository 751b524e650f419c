"""Jobs as they are gathered, listed and kept in results: what wins, what is missing, what is refused."""

from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from job_parts import TINY, job_of
from traincast.diagnostics import Note
from traincast.errors import ConfigError, FormatError
from traincast.hardware.clusters import load_cluster
from traincast.job.choices import choices_of
from traincast.job.draft import Draft, Setting
from traincast.job.fields import (
    FACTS,
    FIELDS,
    JOB,
    PARALLEL,
    PLAN,
    axes,
    fields,
    file_sections,
    left_open,
    limited,
    needing,
    shown_in,
    ways,
)
from traincast.job.flags import flag_of
from traincast.job.frameworks import load_framework
from traincast.job.job_file import _template_line, draft_of_table
from traincast.job.options import SimulateOptions
from traincast.job.record import RunRecord, record_from_table, record_to_table
from traincast.job.request import JobRequest
from traincast.job.words import JOB_WORDS, SIMULATE_WORDS, job_fields, said_of_job, sorted_out

GIVEN = {"gpus": 8, "seq_length": 1024, "global_batch": 64}
H100 = load_cluster("h100")


@pytest.mark.parametrize(
    ("need", "layout", "holds"),
    [
        ("tp>1", {"tp": 2}, True),
        ("tp>1", {"tp": 1}, False),
        ("zero>0", {"zero": 1}, True),
        ("zero>0", {"zero": 0}, False),
        ("zero=3", {"zero": 3}, True),
        ("zero=3", {"zero": 2}, False),
        ("task=lora", {"task": "lora"}, True),
        ("task=lora", {"task": "pretrain"}, False),
        ("experts", {"experts": 4}, True),
        ("experts", {"experts": 0}, False),
        ("experts", {"experts": None}, False),
    ],
)
def test_a_field_matters_where_what_it_needs_holds(need, layout, holds):
    field = replace(FIELDS["overlap_tp"], needs=(need,))
    assert field.matters(SimpleNamespace(**layout)) is holds


def test_a_field_matters_where_all_that_it_needs_holds():
    field = replace(FIELDS["overlap_tp"], needs=("tp>1", "zero=3"))
    found = [field.matters(SimpleNamespace(tp=tp, zero=zero)) for tp in (1, 2) for zero in (1, 3)]
    assert found == [False, False, False, True]
    assert replace(field, needs=()).matters(SimpleNamespace())


def test_fields_are_listed_by_what_their_rows_say():
    every = FIELDS.values()
    assert set(fields()) == set(every)
    assert {each.group for each in fields(group="pipeline")} == {"pipeline"}
    assert set(fields(group="pipeline", of=JOB)) == {
        each for each in every if each.group == "pipeline" and JOB in each.of
    }
    assert set(needing("ep>1")) == {each.name for each in every if "ep>1" in each.needs} != set()
    assert set(axes()) == {each.name for each in every if each.axis in ("axis", "limited", "way")}
    assert set(limited()) == {each.name for each in every if each.axis == "limited"}
    assert set(ways()) == {each for each in every if each.axis == "way"}
    assert set(left_open()) == {each.name for each in every if each.axis}
    assert {"tp", "pp"} <= set(limited()) < set(axes()) < set(left_open())
    assert {key for keys in file_sections().values() for key in keys} == {each for each in every if each.file}
    assert "parallel" in file_sections()
    assert "" not in file_sections()


def test_what_is_shown_where_is_told_by_the_table():
    assert set(shown_in(PLAN)) == {each.name for each in FIELDS.values() if each.is_axis or PLAN in each.shown}
    parallel = {each.fact or each.name for each in FIELDS.values() if PARALLEL in each.shown}
    assert set(shown_in(PARALLEL)) == parallel
    facts = {each.fact or each.name for each in FIELDS.values() if PARALLEL not in each.shown and JOB in each.of}
    assert set(shown_in(FACTS)) == facts


@pytest.mark.parametrize(
    ("takes", "choices", "number"),
    [("count", "", True), ("counts", "", True), ("tokens", "", True), ("number", "", True),
     ("count", "NODE_USES", False), ("text", "", False), ("switch", "", False), ("choice", "CP_KINDS", False)],
)  # fmt: skip
def test_numbers_are_what_has_a_range(takes, choices, number):
    assert replace(FIELDS["tp"], takes=takes, choices=choices).is_number is number


def test_what_is_said_later_wins_and_settles_what_was_assumed():
    notes = (Note("assumed-tp", "tp"), Note("assumed-micro-batch", "one"), Note("other", "other"))
    below = Draft(model="llama3-8b", cluster="h100", cluster_assumed=True, fields={"gpus": 8, "tp": 2}, notes=notes)
    over = Draft(fields={"micro_batch": 2, "tp": 4}, notes=(Note("later", "x"),))
    found = below.under(over)
    assert (found.model, found.cluster, found.cluster_assumed) == ("llama3-8b", "h100", True)
    assert dict(found.fields) == {"gpus": 8, "tp": 4, "micro_batch": 2}
    assert [note.code for note in found.notes] == ["other", "later"]
    named = below.under(Draft(model="llama3-70b", cluster="h200"))
    assert (named.model, named.cluster, named.cluster_assumed) == ("llama3-70b", "h200", False)
    assert not replace(below, cluster_assumed=False).under(over).cluster_assumed


def test_gpus_that_are_not_those_of_the_launcher_are_told():
    launched = Draft(model="llama3-8b", launched=16, whys={"gpus": "torchrun --nnodes 2"})
    for gpus, count in ((16, 0), (8, 1), (None, 0)):
        found = launched.under(Draft(fields={} if gpus is None else {"gpus": gpus}))
        assert [note.code for note in found.warnings] == ["gpus-of-launcher"] * count
    assert "--gpus 8 is taken, but the launcher starts 16 ranks (torchrun --nnodes 2)" in (
        launched.under(Draft(fields={"gpus": 8})).warnings[0].text
    )
    assert Draft().under(Draft(fields={"gpus": 8})).warnings == ()


@pytest.mark.parametrize("missing", ["gpus", "seq_length", "global_batch"])
def test_what_is_missing_is_named_with_what_to_do(missing):
    draft = Draft(model=TINY, fields={name: value for name, value in GIVEN.items() if name != missing})
    assert draft.missing() == missing
    with pytest.raises(ConfigError, match=f"{missing}: is missing; give {missing}=..."):
        draft.request()
    why = replace(draft, whys={missing: "nothing says it"})
    with pytest.raises(ConfigError, match=r"is missing \(nothing says it\); give"):
        why.request()


def test_a_draft_with_all_that_is_needed_is_a_request():
    whole = Draft(model=TINY, fields=GIVEN)
    assert whole.missing() is None
    assert whole.request() == JobRequest(model=TINY, **GIVEN)
    assert Draft(fields=GIVEN).missing() == "model"
    with pytest.raises(ConfigError, match="model: is missing"):
        Draft(fields=GIVEN).request()
    assert replace(whole, model="llama3-8b").request().model.name == "llama3-8b"


def test_defaults_of_a_framework_follow_from_gpus_and_what_is_said_goes_before():
    def finish(fields, model):
        assert model in (None, TINY)
        return {"dp": None, "global_batch": 4 * fields["gpus"], "micro_batch": 2}

    said = Draft(model=TINY, fields={"gpus": 8, "seq_length": 1024}, finish=finish)
    assert said.missing() is None
    finished = Draft(
        model=TINY,
        fields={"gpus": 8, "seq_length": 1024, "micro_batch": 1},
        finish=lambda fields, _: {"global_batch": 4 * fields["gpus"], "micro_batch": 2},
    )
    assert finished.request() == JobRequest(model=TINY, gpus=8, seq_length=1024, global_batch=32, micro_batch=1)
    assert replace(finished, fields={"seq_length": 1024}).missing() == "gpus"
    other = Draft(finish=lambda _fields, _model: {"global_batch": 5})
    assert finished.under(other).missing() is None
    assert finished.under(other).finish is other.finish
    assert finished.under(Draft()).finish is finished.finish


def record_of(job, **fields):
    return RunRecord(command="predict", cluster=H100, options=SimulateOptions(), job=job, **fields)


def kept(record):
    """Return a record as a result would hold it, read again."""
    plain = msgspec.json.decode(msgspec.json.encode(record_to_table(record)))
    return record_from_table(plain, record.inputs, "result.json")


OWN = replace(load_framework("megatron-core-2025"), name="ours", host_layer_s=1e-4)


@pytest.mark.parametrize(
    "job",
    [
        JobRequest(model=TINY, **GIVEN),
        JobRequest(model=TINY, **GIVEN, tp=2, framework="megatron-core-2025", overlap_tp=False, stage_layers=(8,)),
        JobRequest(model=TINY, **GIVEN, framework=OWN),
        job_of(gpus=8, zero=1, shard=4),
        job_of(gpus=8, exp_avg_dtype="bf16", offload_optimizer=0.5, zero=1),
        None,
    ],
)
def test_what_a_result_was_made_from_is_kept_in_it(job):
    record = record_of(job, notes=(Note("a", "b"),), settings=(Setting("x", "1", "read"),), allow_oom=True)
    record = record if job is not None else replace(record, command="simulate", notes=(), settings=(), allow_oom=False)
    found = kept(record)
    if isinstance(job, JobRequest) and isinstance(job.framework, str | None):
        assert found.job == job
    elif isinstance(job, JobRequest):
        assert replace(found.job.framework, sources=()) == replace(OWN, sources=())
    elif job is not None:
        assert (found.job.parallel, found.job.sharding, found.job.offload) == (job.parallel, job.sharding, job.offload)
        assert (found.job.optimizer, found.job.assumptions) == (job.optimizer, job.assumptions)
        assert found.job.sharing == job.sharing
    else:
        assert found.job is None
    assert (found.notes, found.settings, found.allow_oom) == (record.notes, record.settings, record.allow_oom)
    assert (found.command, found.cluster.name, found.options) == (record.command, "h100", SimulateOptions())


def test_a_record_is_a_draft_over_which_options_win():
    job = JobRequest(model=TINY, **GIVEN, tp=2)
    draft = record_of(job).draft()
    assert dict(draft.fields) == {**GIVEN, "tp": 2}
    assert draft.under(Draft(fields={"tp": 4})).request().tp == 4
    decided = job_of()
    assert record_of(decided).draft() is decided
    with pytest.raises(ConfigError, match="does not describe a job"):
        record_of(None).draft()


def damaged(change, job=None):
    table = msgspec.json.decode(msgspec.json.encode(record_to_table(record_of(job or JobRequest(model=TINY, **GIVEN)))))
    change(table)
    return record_from_table(table, (), "result.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(command="plan"), "was made by 'plan' at"),
        (lambda table: table.pop("cluster"), "cluster"),
        (lambda table: table["options"].update(speed=1), r"\$.run.options.speed is not known"),
        (lambda table: table["options"].update(layout={"wide": 1}), r"\$.run.options.layout.wide is not known"),
        (lambda table: table["options"].update(seeds="many"), r"cannot be run again: .*\$.run.options.seeds"),
        (lambda table: table.update(allow_oom="yes"), r"\$.run.allow_oom"),
    ],
)
def test_records_that_this_version_cannot_run_are_refused(change, message):
    with pytest.raises((FormatError, ConfigError), match=message):
        damaged(change)


def test_decided_jobs_with_fields_that_nobody_knows_are_refused():
    with pytest.raises(FormatError, match=r"\$.run.decided_job.speed is not known"):
        damaged(lambda table: table["decided_job"].update(speed=1), job_of())
    with pytest.raises(FormatError, match=r"run.decided_job"):
        damaged(lambda table: table["decided_job"].update(padded_vocab="many"), job_of())
    # Results once did not say what a framework keeps in memory.
    again = damaged(lambda table: table["decided_job"]["framework"].pop("memory"), job_of(framework="torchtitan-2025"))
    assert again.job.framework.memory == load_framework("torchtitan-2025").memory


def test_options_of_a_record_are_those_it_was_made_with():
    options = SimulateOptions(jitter=0.1, compute_slowdown={3: 1.2}, tokens=1e12)
    found = kept(replace(record_of(job_of()), options=options))
    assert found.options == options


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"speed": {}}, "speed: is not a section"),
        ({"parallel": 3}, "parallel: is 3; it must be a table"),
        ({"parallel": {"speed": 3}}, "parallel.speed: is unknown"),
        ({"parallel": {"tp": "two"}}, "parallel.tp"),
        ({"convert": {"aicb": 3}}, "convert.aicb: is 3; it must be a table"),
        ({"convert": {"aicb": {"phases": []}}}, "convert.aicb.phases"),
        ({"model": {"name": 3}}, "model.name"),
    ],
)
def test_job_files_with_what_is_not_known_are_refused(document, message):
    with pytest.raises(ConfigError, match=message):
        draft_of_table(document, "job.toml")


def test_job_files_say_fields_in_sections(tmp_path):
    (tmp_path / "own.toml").write_text("")
    (tmp_path / "5").write_text("")
    shown = str(tmp_path / "job.toml")
    document = {
        "model": {"name": "llama3-8b"},
        "cluster": {"name": "own.toml"},
        "parallel": {"tp": 2},
        "convert": {"aicb": {"a": True, "b": {"c": 1, "d": 2}, "e": 1.5, "f": "own.toml", "g": 5, "h": "plain"}},
    }
    draft = draft_of_table(document, shown)
    assert draft.model == "llama3-8b"
    assert draft.cluster == str(tmp_path / "own.toml")
    assert dict(draft.fields) == {"tp": 2}
    named = {"f": str(tmp_path / "own.toml"), "g": "5", "h": "plain"}
    assert draft.convert["aicb"] == {"a": "true", "b": "c=1,d=2", "e": "1.5", **named}
    assert draft_of_table({"cluster": {"name": "other.toml"}}, shown).cluster == "other.toml"
    assert draft_of_table({"cluster": {"name": "h200"}}, shown).cluster == "h200"
    assert draft_of_table({}, shown) == Draft()
    described = draft_of_table({"model": {"name": "llama3-8b", "layers": 3}}, shown).model
    assert (described.layers, described.hidden) == (3, 4096)


@pytest.mark.parametrize(("length", "column"), [(12, 31), (29, 31), (30, 31), (31, 33), (40, 42)])
def test_comments_of_the_template_stand_in_one_column_where_values_leave_room(length, column):
    field = replace(FIELDS["tp"], given=True, example="1" * (length - len("tp = ")), comment="ranks")
    line = _template_line(field)
    assert (line.index("#"), line[column:]) == (column, "# ranks")
    assert _template_line(replace(field, given=False)).startswith("# tp = 1")
    assert _template_line(replace(field, comment="")) == line[:length]


def test_keywords_are_sorted_out_by_what_they_set():
    found, others = sorted_out({"tp": 2, "jitter": 0.1}, JOB_WORDS, SIMULATE_WORDS)
    assert (found, others) == ({"tp": 2}, {"jitter": 0.1})
    with pytest.raises(ConfigError, match="tensor_model_parallel_size: is the same as tp; give one of them"):
        sorted_out({"tp": 2, "tensor_model_parallel_size": 2}, JOB_WORDS)
    with pytest.raises(ConfigError, match=r"unknown option 'gpsu'.*gpus"):
        sorted_out({"gpsu": 2}, JOB_WORDS)
    with pytest.raises(ConfigError, match="unknown option 'qqqqqq'"):
        sorted_out({"qqqqqq": 2}, JOB_WORDS)


def test_keywords_read_the_texts_that_flags_do():
    assert job_fields(
        {"seq_length": "8k", "tp": None, "stage_layers": (3, 5), "recompute_modules": "mlp core_attn"}
    ) == {
        "seq_length": 8192,
        "stage_layers": (3, 5),
        "recompute_modules": ("mlp", "core_attn"),
    }
    assert job_fields({"framework": OWN}) == {"framework": OWN}
    with pytest.raises(ConfigError, match=r"^tp: "):
        job_fields({"tp": "two"})
    draft = said_of_job({"model": TINY, "tp": 2})
    assert (draft.model, dict(draft.fields)) == (TINY, {"tp": 2})


def test_flags_have_the_first_name_of_their_row():
    assert flag_of("tp") == "--tp"
    assert flag_of("failures") == "--goodput"
    assert flag_of("no_such_field") == "--no-such-field"
    assert set(choices_of(FIELDS["cp_kind"])) >= {"ring", "all_gather"}
