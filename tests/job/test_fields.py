"""The table of what a job may say agrees with `JobRequest`, and everything that lists fields comes from it."""

import json
import re
import subprocess
import sys
from types import UnionType
from typing import Union, get_args, get_origin

import pytest

import fields_page
from traincast.errors import ConfigError
from traincast.job.choices import CHOICES
from traincast.job.facts import JobFacts, facts_of
from traincast.job.fields import FACTS, FIELDS, GROUPS, JOB, LAYOUT, PARALLEL, PLAN, axes, fields, limited, shown_in
from traincast.job.job import DECIDED
from traincast.job.job_file import SECTIONS, template
from traincast.job.optimizer import OptimizerTypes
from traincast.job.options import LayoutOptions
from traincast.job.parallel import Parallel
from traincast.job.request import JOB_FIELDS, JobRequest
from traincast.job.resolve import resolve_job
from traincast.model.load import load_model
from traincast.planning.layout import COLUMNS, Layout
from traincast.planning.options import AXES

TAKES = {
    "text": {str},
    "count": {int},
    "counts": {tuple[int, ...]},
    "tokens": {int},
    "number": {float},
    "switch": {bool},
    "choice": {str},
    "names": {tuple[str, ...]},
}


def request(**said):
    return JobRequest(**{"gpus": 8, "seq_length": 4096, "global_batch": 64, **said})


def types_of(annotation):
    return set(get_args(annotation)) - {type(None)} if get_origin(annotation) in (Union, UnionType) else {annotation}


def test_the_table_and_the_request_have_the_same_fields():
    assert {each.name for each in fields(of=JOB)} == {*JOB_FIELDS}
    assert {each.name for each in fields(of=LAYOUT)} <= {*LayoutOptions.__struct_fields__}


@pytest.mark.parametrize("name", [name for name in JOB_FIELDS if name not in ("model", "framework")])
def test_a_field_takes_what_the_request_declares(name):
    field = FIELDS[name]
    also = {str} if field.takes == "count" and field.choices else set()
    assert types_of(JOB_FIELDS[name].type) == TAKES[field.takes] | also
    assert bool(field.choices) == (field.takes in ("choice", "names") or bool(also))


def test_every_field_has_a_group_help_a_version_and_an_example():
    for each in FIELDS.values():
        assert each.group in GROUPS, each.name
        assert re.fullmatch(r"[A-Z].*\.", each.help), each.name
        assert re.fullmatch(r"\d+\.\d+", each.since), each.name
        assert bool(each.file) == bool(each.example) == (JOB in each.of and each.name != "model"), each.name
        assert not each.choices or each.what, each.name


def test_what_a_field_needs_is_another_field_or_asked_of_a_layout():
    for each in FIELDS.values():
        for need in each.needs:
            name, *value = re.split("[>=]", need)
            assert name in FIELDS or hasattr(Layout, name), each.name
            known = FIELDS[name].choices if name in FIELDS else ""
            assert not known or {*value} <= {*CHOICES[known]}, each.name


def test_a_field_without_effect_is_refused_or_told():
    said = {"moe_dispatch_dtype": "fp8", "moe_shared_expert_overlap": True, "outer_bits": 8, "muon_steps": 3}
    notes = [note.code for note in resolve_job(request(model=load_model("llama3-8b"), **said)).assumptions]
    for code in ("moe-dispatch-dtype-unused", "moe-shared-expert-overlap-unused", "outer-unused", "muon-unused"):
        assert code in notes
    with pytest.raises(ConfigError, match="it needs task lora"):
        resolve_job(request(model=load_model("llama3-8b"), lora_rank=8))


def test_what_a_plan_decides_is_shown_and_may_be_limited():
    assert {*limited()} <= {*axes()} <= {*shown_in(PLAN)}
    assert all(FIELDS[name].takes == "count" for name in limited())


def test_a_result_tells_every_field_once():
    assert {*shown_in(FACTS)}.isdisjoint(shown_in(PARALLEL))
    assert {*shown_in(FACTS)} <= {*JobFacts.__struct_fields__}
    elsewhere = {
        "layers_Q",
        "schedule",
        "recompute_modules",
        "last_wide_layers",  # told by the assumptions
        "moe_routing",  # told by expert_imbalance, and by the assumptions
        "packing",  # told by packed_length, and by the assumptions
        "recompute_operators_as",  # likewise by the assumptions
        *Parallel.__struct_fields__,
        *OptimizerTypes.__struct_fields__,
    }
    assert {*DECIDED} - elsewhere <= {*JobFacts.__struct_fields__}


def test_a_result_tells_what_was_decided():
    experts = resolve_job(
        request(model=load_model("qwen3-30b-a3b"), ep=4, moe_dispatcher="deepep", task="lora", lora_rank=8)
    )
    facts = facts_of(experts, ("tL",))
    assert (facts.moe_dispatcher, facts.lora_rank, facts.lora_targets) == ("deepep", 8, experts.finetuning.lora_targets)
    assert (facts.grad_reduce_bytes, facts.model) == (experts.framework.grad_reduce_bytes, "qwen3-30b-a3b")
    dense = facts_of(resolve_job(request(model=load_model("llama3-8b"))), ())
    assert (dense.moe_dispatcher, dense.moe_dispatch_dtype, dense.lora_rank, dense.lora_targets) == (
        None,
        None,
        None,
        (),
    )


def test_a_layout_has_the_fields_that_plans_show():
    assert Layout.__struct_fields__ == (*COLUMNS, "software")
    assert {*AXES} == {*axes()}


def test_the_template_says_each_field_in_its_section():
    text = template()
    for section, keys in SECTIONS.items():
        part = text.partition(f"[{section}]")[2].partition("\n[")[0]
        assert re.findall(r"^(?:# )?(\w+) = ", part, re.MULTILINE) == [*keys]


MADE_UP = {
    **{"name": "made_up_layers", "group": "sharding", "section": "Parallel layout", "of": "job"},
    **{"flags": "--made-up-layers;--megatrons-name", "takes": "count", "least": "1", "axis": "limited"},
    **{"needs": "pp>1", "line": "{} made up", "since": "0.2", "file": "parallel", "example": "3"},
    **{"comment": "what nobody has", "help": "Layers that are made up."},
}
READ_WITH_IT = """
import csv, io, json, sys
from traincast import shipped
plain, row = shipped.shipped_text, json.loads(sys.argv[1])
def with_row(path, folder=shipped.SHIPPED):
    text = plain(path, folder)
    if path != "job/fields.csv":
        return text
    added = io.StringIO()
    csv.DictWriter(added, text.partition("\\n")[0].split(",")).writerow(row)
    return text + added.getvalue()
shipped.shipped_text = with_row
from click.testing import CliRunner
from traincast.cli.main import cli
from traincast.job.fields import FACTS, shown_in
from traincast.job.job_file import SECTIONS, TEMPLATE
from traincast.planning.layout import COLUMNS
from traincast.planning.options import AXES, LIMITED
from traincast.sweeps.rows import PLAN_COLUMNS
print(json.dumps({
    "help": CliRunner().invoke(cli, ["plan", "--help"]).output, "template": TEMPLATE, "file": SECTIONS["parallel"],
    "axes": AXES, "limited": LIMITED, "plans": COLUMNS, "sweeps": PLAN_COLUMNS, "facts": shown_in(FACTS),
}))
"""


def test_a_row_of_the_table_is_a_flag_a_key_an_axis_and_a_column():
    ran = subprocess.run(
        [sys.executable, "-c", READ_WITH_IT, json.dumps(MADE_UP)], capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert "--made-up-layers, --megatrons-name N" in " ".join(found["help"].split())
    assert "--max-made-up-layers N" in found["help"]
    assert "# made_up_layers = 3           # what nobody has\n" in found["template"]
    for place in ("file", "axes", "limited", "plans", "sweeps", "facts"):
        assert MADE_UP["name"] in found[place], place


def test_the_page_about_fields_is_that_of_the_table():
    assert fields_page.PAGE.read_text(encoding="utf-8") == fields_page.page(), "python tools/fields_page.py"
