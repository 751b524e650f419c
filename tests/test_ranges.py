"""Every boundary refuses numbers that no quantity has, with one message that says what and where."""

import json
import math
from pathlib import Path
from typing import get_args

import click
import pytest
from msgspec.structs import fields

from support import fabric_of_table
from traincast.cli.main import cli
from traincast.dialects import draft_like
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.clusters import load_cluster
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.gpu import Gpu
from traincast.job.frameworks import Framework, load_framework
from traincast.job.job_file import SECTIONS, read_job_file
from traincast.job.options import LayoutOptions, make_options
from traincast.job.request import JobRequest
from traincast.model.load import load_model
from traincast.model.model import Attention, Experts, Latent, Model
from traincast.units import (
    LARGEST_WHOLE,
    RANGES,
    is_number,
    parse_rate,
    parse_size,
    parse_time,
    plain_number,
    quoted,
    range_of,
)

NO_NUMBERS = (
    "true",
    '"seven"',
    "nan",
    "inf",
    "1e999",
    "-1e300",
    "1e308",
    "9223372036854775808",
    "9" * 5000,
    "0x" + "f" * 4000,
)
"""What no quantity is, as TOML writes it."""


def numbers_of(kind):
    """Return the fields of a record that are numbers."""
    found = []
    for field in fields(kind):
        types = {field.type, *get_args(field.type)}
        types |= {each for one in types for each in get_args(one)}
        if types & {int, float} and not types & {bool, str}:
            found.append(field.name)
    return found


@pytest.mark.parametrize(
    "kind", [Cluster, Gpu, Link, FabricSpec, Framework, Model, Attention, Latent, Experts, JobRequest, LayoutOptions]
)
def test_every_number_of_a_description_has_a_range(kind):
    assert numbers_of(kind)
    for name in numbers_of(kind):
        assert range_of(name) is not None, name


@pytest.mark.parametrize("known", RANGES.values(), ids=list(RANGES))
def test_a_range_holds_its_ends_and_nothing_beyond(known):
    assert known.checked(known.lowest) == known.lowest
    assert known.checked(known.highest) == known.highest
    assert math.isfinite(known.lowest)
    assert known.lowest < known.highest
    if known.whole:
        assert known.highest <= LARGEST_WHOLE
        assert type(known.checked(float(int(known.highest)))) is int
        assert type(known.checked(int(known.lowest))) is int
    beyond = (
        known.lowest * 2 - 1 if known.lowest <= 0 else 0,
        known.highest * 2 + 1,
        math.nan,
        math.inf,
        -math.inf,
        True,
        "1",
        None,
        1e-320,
        10**5000,
    )
    for wrong in (*beyond, *((known.lowest + 0.5,) if known.whole else ())):
        with pytest.raises(ConfigError, match=r"^place: is .*; it must be a (whole )?number from ") as caught:
            known.checked(wrong, "place")
        assert len(str(caught.value)) < 300


def test_products_of_what_is_in_range_are_finite():
    longest = RANGES["time"].highest * RANGES["degree"].highest * RANGES["factor"].highest
    moved = RANGES["bytes"].highest * RANGES["degree"].highest / RANGES["rate"].lowest
    waited = RANGES["latency"].highest * RANGES["degree"].highest ** 2
    computed = RANGES["extent"].highest ** 4 / RANGES["FLOP rate"].lowest
    assert math.isfinite(max(longest, moved, waited, computed) * RANGES["added share"].highest ** 8)


def test_texts_are_numbers_only_where_they_are_plain():
    assert [plain_number(text) for text in ("8", "8.0", "-3", "1e3", ".5")] == [8, 8, -3, 1000.0, 0.5]
    assert type(plain_number("8.0")) is int
    assert is_number("1e999")
    for text in ("", "eight", "1_000", "nan", "\u0663", "9" * 41, "0x10"):
        assert not is_number(text)


def test_long_values_are_cut_in_messages():
    for value in ("x" * 10**5, 10**5000, [1] * 10**5, {"a": "b" * 10**5}, [10**5000]):
        assert len(quoted(value)) < 130


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_size, "1e308TiB"), (parse_size, "1e300TiB"), (parse_size, "9007199254740992"), (parse_rate, "1e-320GB/s"),
     (parse_rate, "1e19B/s"), (parse_time, "1e308s"), (parse_time, "1e999"), (parse_size, "9" * 5000)],
)  # fmt: skip
def test_texts_with_units_have_a_range(parse, text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(str(caught.value)) < 200


def refused(read, path, text, where=""):
    """Check that a file is refused with one short message that names it and the place in it."""
    path.write_text(text)
    with pytest.raises((ConfigError, FormatError, InfeasibleError)) as caught:
        read(str(path))
    message = str(caught.value)
    assert path.name in message
    assert len(message) - message.count(str(path)) * len(str(path)) < 700, message
    assert "\n" not in message
    if "not TOML that can be read" not in message:
        assert where in message, message


CLUSTER = [
    *(("", name) for name in numbers_of(Cluster)),
    *(("[gpu]\n", name) for name in numbers_of(Gpu)),
    *((f"[{link}]\n", name) for link in ("intra", "inter") for name in numbers_of(Link)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "name"), CLUSTER)
def test_numbers_of_a_cluster(tmp_path, table, name):
    for wrong in (*NO_NUMBERS, "-1", "1e-320"):
        if name.endswith("flops_per_s") and wrong.startswith("922"):
            continue
        refused(load_cluster, tmp_path / "mine.toml", f'base = "h100"\n{table}{name} = {wrong}\n', name)


@pytest.mark.parametrize("name", numbers_of(FabricSpec))
def test_numbers_of_a_fabric(name):
    for wrong in (True, "seven", math.nan, math.inf, -1, 1e308, 2**63, 1e-320):
        with pytest.raises(ConfigError, match=rf"fabric\.{name}: "):
            fabric_of_table({"kind": "dual-plane", "nodes_per_leaf": 4, "routing": "ecmp", name: wrong}, "mine.toml")


@pytest.mark.parametrize("name", numbers_of(Framework))
def test_numbers_of_a_framework(tmp_path, name):
    for wrong in (*NO_NUMBERS, "-1", "1e-320"):
        refused(load_framework, tmp_path / "mine.toml", f'base = "megatron-core-2025"\n{name} = {wrong}\n', name)


MODEL = [
    *(("", name) for name in numbers_of(Model)),
    *(("[attention]\n", name) for name in numbers_of(Attention)),
    *(("[attention.latent]\n", name) for name in numbers_of(Latent)),
    *(("[experts]\n", name) for name in numbers_of(Experts)),
]


@pytest.mark.parametrize(("table", "name"), MODEL)
def test_numbers_of_a_model(tmp_path, table, name):
    for wrong in (*NO_NUMBERS, "-1", "1e-320"):
        refused(load_model, tmp_path / "mine.toml", f'base = "deepseek-v3"\n{table}{name} = {wrong}\n', name)


JOB = [(section, key) for section, keys in SECTIONS.items() for key in keys if key in numbers_of(JobRequest)]


@pytest.mark.parametrize(("section", "key"), JOB)
def test_numbers_of_a_job(tmp_path, section, key):
    for wrong in (*NO_NUMBERS, "-1"):
        value = f"[{wrong}]" if key == "stage_layers" else wrong
        refused(read_job_file, tmp_path / "job.toml", f"[{section}]\n{key} = {value}\n", key)


CONFIG = {
    "model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "vocab_size": 1000,
    "intermediate_size": 1024, "kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize("key", [key for key, value in CONFIG.items() if isinstance(value, int)])
def test_numbers_of_a_config(tmp_path, key):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert load_model(str(path)).layers == 4
    for wrong in ("NaN", "Infinity", "1e999", "1e308", "-1", "true", '"8"', "9223372036854775808", "9" * 5000, "0.5"):
        refused(load_model, path, json.dumps(CONFIG | {key: "HERE"}).replace('"HERE"', wrong))


MEGATRON = "--num-layers=4 --hidden-size=512 --num-attention-heads=8 --num-experts=8 --multi-latent-attention"


@pytest.mark.parametrize(
    "flag",
    ["--tensor-model-parallel-size", "--seq-length", "--micro-batch-size", "--num-layers", "--hidden-size",
     "--vocab-size", "--num-attention-heads", "--kv-lora-rank", "--q-lora-rank", "--qk-head-dim", "--num-experts",
     "--moe-router-topk", "--moe-expert-capacity-factor", "--mtp-num-layers", "--world-size"],
)  # fmt: skip
def test_numbers_of_megatron_flags(flag):
    for wrong in ("-1", "9223372036854775807", "9223372036854775808", "1e308", "nan", "inf", "9" * 5000, "many"):
        with pytest.raises(ConfigError) as caught:
            draft_like("megatron", [*MEGATRON.split(), f"{flag}={wrong}"])
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", ["parallelism.tensor_parallel_degree", "parallelism.data_parallel_shard_degree", "training.seq_len",
             "parallelism.pipeline_parallel_degree", "training.local_batch_size", "parallelism.expert_parallel_degree"],
)  # fmt: skip
def test_numbers_of_torchtitan_settings(tmp_path, name):
    file = tmp_path / "job.toml"
    table, key = name.split(".")
    words = ["--model.name", "llama3", "--model.flavor", "8B", "--nproc_per_node", "8"]

    def request(given):
        draft = draft_like("torchtitan", [*words, *given])
        return draft.request() if draft.missing() is None else None

    for wrong in ("0", "-2", "1e308", "nan", "9223372036854775808", "9" * 5000, "many"):
        with pytest.raises(ConfigError, match=key):
            request([f"--{name}={wrong}"])
    for wrong in ("0", "true", "inf", "1e308", "0.5", "9223372036854775808"):
        file.write_text(f"[{table}]\n{key} = {wrong}\n")
        with pytest.raises(ConfigError, match=key):
            request([f"--job.config_file={file}"])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name in numbers_of(LayoutOptions) if name != "expert_loads"
     for wrong in (-1, math.nan, math.inf, True, 2**63)]
    + [("expert_loads", (math.nan,)), ("busbw_bytes_per_s", {"tp": 1e-320}), ("busbw_bytes_per_s", {"tp": 1e308}),
       ("compute_slowdown", {0: 1e308}), ("compute_slowdown", {2**63: 1.5}), ("overlap_slowdown", 1e308),
       ("overlap_slowdown", {"memory": 1e308}), ("network_seeds", 10**9)],
)  # fmt: skip
def test_numbers_of_options(name, wrong):
    with pytest.raises(ConfigError, match=r"it must be a (whole )?number from"):
        make_options(**{name: wrong})


def options_with_numbers():
    """Return every option of every command that takes a number."""
    commands = {name: cli.get_command(None, name) for name in cli.list_commands(None)}
    options = [(name, option) for name, command in commands.items() for option in command.params]
    return [(name, option.opts[0]) for name, option in options if option.type.name in ("integer", "float")]


@pytest.mark.parametrize(("command", "option"), options_with_numbers())
def test_numbers_of_the_command_line(command, option):
    known = next(each for each in cli.get_command(None, command).params if option in each.opts)
    for wrong in ("-1", "nan", "inf", "1e308", "9223372036854775808", "9" * 5000, "1_0", "many"):
        with pytest.raises(click.BadParameter, match=r"it must be a (whole )?number from") as caught:
            known.type.convert(wrong, known, None)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "words",
    [("--slow", "0=1e308"), ("--overlap-slowdown", "1e308"), ("--expert-loads", "1,1e999"), ("--pp-comm", "1e308TiB"),
     ("--pp-comm", "9223372036854775808"), ("--busbw", "tp=1e-320GB/s")],
)  # fmt: skip
def test_numbers_inside_options(words):
    option = next(each for each in cli.get_command(None, "simulate").params if words[0] in each.opts)
    with pytest.raises(click.BadParameter):
        option.type_cast_value(click.Context(cli), [words[1]] if option.multiple else words[1])


def test_the_page_has_the_table_of_the_code():
    page = Path(__file__).parent.parent / "docs" / "results.md"
    rows = ["| kind | lowest | highest | unit | what has it |", "|---|---|---|---|---|"]
    for each in RANGES.values():
        lowest, highest = each.span.removesuffix(f" {each.unit}").split(" to ")
        rows.append(f"| {each.kind} | {lowest} | {highest} | {each.unit or '-'} | {each.of} |")
    assert "\n".join([*rows, ""]) in page.read_text(encoding="utf-8")
