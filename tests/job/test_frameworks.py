"""Named frameworks are complete and sourced; a file may build on one; every number in it is checked."""

import pytest
from msgspec.structs import fields

from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.hardware.attention_kernels import ATTENTION_KERNELS
from traincast.job.frameworks import DEFAULT_FRAMEWORK, Framework, framework_names, framework_of_year, load_framework
from traincast.model.recompute import RECOMPUTE

_REQUIRED = """
megatron-core-2025 megatron-core-2024 megatron-2021 megatron-deepspeed-2022 llm-foundry-2023 torchtitan-2025
nanotron-2024 automodel-2025 maxtext-2024 internevo-2024 oneflow-2021 fms-fsdp-2024 mindspeed-2024 primus-2025
xtuner-2024 eager
"""


def test_the_frameworks_that_rows_and_users_name_are_there():
    assert set(_REQUIRED.split()) <= set(framework_names())


@pytest.mark.parametrize("name", framework_names())
def test_every_number_of_a_framework_has_a_source_and_is_physical(name):
    framework = load_framework(name)
    numbers = {each.name for each in fields(Framework) if each.type in (int, float)} - {"year"}
    given = dict(framework.sources)
    # Defaults of the record itself (a share of 0, a multiple of 1) say that nothing is done.
    missing = {each for each in numbers - set(given) if getattr(framework, each) not in (0, 1)}
    assert not missing
    assert all(text and not text.startswith("set in") for key, text in given.items() if key != "year")
    assert framework.attention_kernel in ATTENTION_KERNELS
    assert framework.recompute in RECOMPUTE
    assert 0 <= framework.host_layer_s <= 2e-3
    assert 1e-3 <= framework.step_fixed_s <= 50e-3
    assert framework.compute_factor == 1


def test_generations_differ_as_their_software_did():
    old, new = load_framework("megatron-2021"), load_framework("megatron-core-2025")
    assert not old.sequence_parallel
    assert new.sequence_parallel
    assert old.attention_kernel == "unfused"
    assert old.unhidden_tp > new.unhidden_tp
    assert old.module_launches < new.module_launches
    assert load_framework("nanotron-2024").p2p_handover_s > 10 * new.p2p_handover_s
    assert load_framework("torchtitan-2025").unhidden_fsdp < load_framework("llm-foundry-2023").unhidden_fsdp


def test_experts_divide_the_replicas_in_what_is_built_on_megatron_core_until_0_9():
    """Whatever programs of another kin take of their base: how they group ranks is their own."""
    found = {name for name in framework_names() if not load_framework(name).folded_experts}
    assert found == {
        "megatron-2021",
        "megatron-2022",
        "megatron-core-2024",
        "megatron-deepspeed-2022",
        "mindspeed-2024",
    }


def test_the_year_chooses_the_generation():
    assert framework_of_year(None) == DEFAULT_FRAMEWORK
    assert framework_of_year(2019) == framework_of_year(2021) == "megatron-2021"
    assert framework_of_year(2024) == "megatron-core-2024"
    assert framework_of_year(2025) == "megatron-core-2025"
    assert framework_of_year(2030) == "megatron-core-2026"
    assert {framework_of_year(year) for year in range(2018, 2031)} <= set(framework_names())


def test_a_file_changes_what_it_says_and_keeps_its_source(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'base = "megatron-core-2025"\ncuda_graphs = true\nhost_layer_s = { value = "180us", source = "May" }\n'
    )
    mine, base = load_framework(str(file)), load_framework("megatron-core-2025")
    assert mine.name == "mine"
    assert mine.cuda_graphs
    assert mine.host_layer_s == pytest.approx(180e-6)
    assert dict(mine.sources)["host_layer_s"] == "May"
    assert mine.unhidden_tp == base.unhidden_tp


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host_layer = 1", "host_layer: is unknown"),
        ("", "description: is missing"),
        ('base = "megatron-core-2025"\nunhidden_tp = 1.5', "unhidden_tp: is 1.5; it must be a number from 0 to 1"),
        ('base = "megatron-core-2025"\nstep_fixed_s = -1.0', "step_fixed_s: is -1"),
        (
            'base = "megatron-core-2025"\nstep_fixed_s = nan',
            "step_fixed_s: is nan; it must be a number from 0 to",
        ),
        ('base = "megatron-core-2025"\nrecompute = "some"', "recompute: is 'some'; known: none, selective"),
        (
            'base = "megatron-core-2025"\nlora_targets = ["linear_qkv", "linear_v"]',
            "lora_targets: is 'linear_v'; known: linear_qkv",
        ),
        (
            'base = "megatron-core-2025"\nmoe_cuda_graph_scope = ["attn", "all"]',
            "moe_cuda_graph_scope: is 'all'; known: attn, mlp",
        ),
        ('base = "megatron-core-2025"\ncuda_graphs = 1', "cuda_graphs: is 1; it must be true or false"),
        ('base = "megatron-core-2025"\nlayers_per_chunk = 1.5', "layers_per_chunk: is 1.5; it must be a whole number"),
        ('base = "megatron-core-2025"\ncompute_factor = 0', "compute_factor: is 0"),
        ('base = "nothing"', "unknown base framework"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, text, message):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_framework(str(file))
    assert "wrong.toml" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones_and_broken_toml_its_line(tmp_path):
    with pytest.raises(UnknownNameError, match="megatron-core-2025"):
        load_framework("megatron-core-2035")
    file = tmp_path / "broken.toml"
    file.write_text("a = 1\nb = \n")
    with pytest.raises(FormatError, match=r"broken.toml:2: is not TOML"):
        load_framework(str(file))
    with pytest.raises(FormatError, match="cannot be read"):
        load_framework(str(tmp_path / "absent.toml"))
