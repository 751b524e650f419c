"""A job file says what it says, its template names every key, and a wrong key is named with its path."""

import pytest

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.job.draft import Draft
from traincast.job.job_file import SECTIONS, TEMPLATE, draft_of_table, read_job_file
from traincast.job.request import JOB_FIELDS
from traincast.job.resolve import resolve_job

KEYS = {key for keys in SECTIONS.values() for key in keys}


def test_the_template_is_a_job_that_runs(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(TEMPLATE)
    draft = read_job_file(str(file))
    job = resolve_job(draft.request())
    assert draft.cluster == "h100"
    assert job.parallel.world_size == 256
    assert job.model.name == "llama3-70b"


def test_template_and_sections_cover_every_field_of_a_job():
    assert {*JOB_FIELDS} - {"model"} == KEYS - {"name"}
    assert all(f"{key} " in TEMPLATE or key in TEMPLATE for key in KEYS)


def test_every_commented_key_of_the_template_is_accepted(tmp_path):
    lines = [line.removeprefix("# ") if " = " in line else line for line in TEMPLATE.splitlines()]
    text = "\n".join(line for line in lines if not line.startswith(("A job", "What is")))
    file = tmp_path / "job.toml"
    file.write_text(text)
    draft = read_job_file(str(file))
    assert KEYS - {"name", "embedding_as_layer", "head_as_layer", "last_stage_layers"} <= set(draft.fields)
    assert draft.request().model.layers == 60


def test_a_model_may_be_changed_where_it_stands():
    draft = draft_of_table({"model": {"name": "llama3-70b", "layers": 12}}, "job.toml")
    assert draft.model.layers == 12
    assert draft.model.hidden == 8192
    assert (
        draft_of_table({"model": {"base": "llama3-8b", "attention": {"kv_heads": 4}}}, "j").model.attention.kv_heads
        == 4
    )


def test_a_file_beside_the_job_is_found(tmp_path):
    (tmp_path / "mine.toml").write_text('base = "llama3-8b"\nlayers = 7\n')
    (tmp_path / "job.toml").write_text('[model]\nname = "mine.toml"\n[batch]\nseq_length = 8\nglobal_batch = 8\n')
    draft = read_job_file(str(tmp_path / "job.toml")).under(Draft(fields={"gpus": 8}))
    assert draft.request().model.layers == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[parallel]\ntpp = 4", "parallel.tpp: is unknown; known: tp, pp"),
        ("[paralel]\ntp = 4", "paralel: is not a section; known: model, parallel"),
        ("parallel = 3", "parallel: is 3; it must be a table"),
        ('[parallel]\ntp = "4"', "parallel.tp: is '4'; it must be a whole number"),
        ("[parallel]\ntp = true", "parallel.tp: is True; it must be a whole number"),
        ("[parallel]\nsequence_parallel = 1", "it must be true or false"),
        ("[parallel]\nstage_layers = [1.5]", "stage_layers: is 1.5; it must be a whole number from 0"),
        ('[parallel]\nstage_layers = "4"', "it must be a list of whole numbers"),
        ("[software]\nprecision = 16", "software.precision: is 16; it must be a text"),
        ("[model]\nname = 3", "model.name: is 3; it must be a text"),
        ('[model]\nname = "llama3-8b"\nlayer = 3', "layer: is unknown"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_path(tmp_path, text, message):
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_job_file(str(file))
    assert "job.toml" in str(caught.value)


def test_a_file_that_is_none(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text("[model\n")
    with pytest.raises(FormatError, match=r"job.toml:1: is not TOML"):
        read_job_file(str(file))
    with pytest.raises(FormatError, match="cannot be read"):
        read_job_file(str(tmp_path / "absent.toml"))
    with pytest.raises(UnknownNameError, match="unknown base model"):
        draft_of_table({"model": {"base": "no such model", "layers": 2}}, "job.toml")


def test_what_is_missing_is_asked_for_by_its_flag():
    with pytest.raises(ConfigError, match="model: is missing; give model="):
        Draft().request()
    with pytest.raises(ConfigError, match="seq_length: is missing; give seq_length="):
        Draft(model="llama3-8b", fields={"gpus": 8}).request()


def test_what_is_said_later_wins():
    first = Draft(model="llama3-8b", cluster="h100", fields={"gpus": 8, "tp": 1})
    both = first.under(Draft(fields={"tp": 4}))
    assert (both.model, both.cluster, both.fields) == ("llama3-8b", "h100", {"gpus": 8, "tp": 4})
