"""Options of simulations: what is taken, in which spelling, and what is refused on the other side of each limit."""

from pathlib import Path

import pytest

from traincast.errors import ConfigError, TraincastError, UnknownNameError
from traincast.job.options import (
    OVERLAP_CLASSES,
    LayoutOptions,
    SimaiOverlap,
    SimulateOptions,
    StageRoles,
    StepOptions,
    changed_options,
    check_gpus_used,
    make_options,
    parse_overlap,
)


@pytest.mark.parametrize(
    ("refused", "taken"),
    [
        ({"tp": 0}, {"tp": 1}),
        ({"gpus": 0}, {"gpus": 1}),
        ({"microbatches": 0}, {"microbatches": 1}),
        ({"expert_imbalance": 0.99}, {"expert_imbalance": 1.0}),
        ({"pp_message_bytes": -1}, {"pp_message_bytes": 0}),
        ({"step": -1}, {"step": 0}),
        ({"comm": "guessed"}, {"comm": "measured"}),
        ({"stage_roles": "nowhere"}, {"stage_roles": "as-written"}),
        ({"dtype": "int3"}, {"dtype": "bf16"}),
        ({"layer_block": "first"}, {"layer_block": "first:last"}),
        ({"layer_block": ":last"}, {"layer_block": "first : last"}),
        ({"expert_loads": (0.0, 0.0)}, {"expert_loads": (0.0, 1.0)}),
        ({"expert_loads": ()}, {"expert_loads": (1.0,)}),
        ({"expert_loads": (-1.0, 2.0)}, {"expert_loads": (1.0, 2.0)}),
        ({"expert_loads": (1.0,), "expert_imbalance": 1.5}, {"expert_imbalance": 1.5}),
    ],
)
def test_layouts_of_files_end_where_they_must(refused, taken):
    LayoutOptions(**taken)
    with pytest.raises(TraincastError):
        LayoutOptions(**refused)


def test_layouts_of_files_are_spelled_one_way():
    found = LayoutOptions(pp_message_bytes="2MiB", comm="Measured", stage_roles="As-Written", layer_block=" a : b ")
    assert (found.pp_message_bytes, found.comm, found.stage_roles) == (2**21, "measured", StageRoles.AS_WRITTEN)
    assert found.stage_roles is StageRoles.AS_WRITTEN
    assert found.block_ends == ("a", "b")
    assert LayoutOptions().block_ends == ("", "")
    assert LayoutOptions(expert_loads="runs/*.json").expert_loads == Path("runs/*.json")
    assert LayoutOptions(expert_loads=[1, 2.5]).expert_loads == (1, 2.5)


@pytest.mark.parametrize(
    ("refused", "taken"),
    [
        ({"what_if": ("nonsense",)}, {"what_if": ("tp_comm*0.5",)}),
        ({"jitter": -0.1}, {"jitter": 0.0}),
        ({"seeds": 0}, {"seeds": 1}),
        ({"network_seeds": 0}, {"network_seeds": 1}),
        ({"network": "none"}, {"network": "flow"}),
        ({"tokens_per_step": 1e6}, {"tokens_per_step": 1e6, "tokens": 1e12}),
        ({"tokens_per_step": 0.0, "tokens": 1e12}, {"tokens_per_step": 1.0, "tokens": 1e12}),
        ({"overlap_slowdown": -0.1}, {"overlap_slowdown": 0.0}),
        ({"overlap_slowdown": {"disk": 0.1}}, {"overlap_slowdown": {"memory": 0.1}}),
        ({"overlap_slowdown": {"memory": -0.1}}, {"overlap_slowdown": {"memory": 0.0}}),
        ({"gpus_used_per_node": 0}, {"gpus_used_per_node": 1}),
        ({"gpus_used_per_node": True}, {"gpus_used_per_node": 2}),
        ({"gpus_used_per_node": "some"}, {"gpus_used_per_node": "all"}),
        ({"gpus_used_per_node": 1.5}, {"gpus_used_per_node": "auto"}),
        ({"compute_slowdown": {-1: 1.2}}, {"compute_slowdown": {0: 1.2}}),
        ({"compute_slowdown": {0: 0.0}}, {"compute_slowdown": {0: 1.0}}),
        ({"busbw_bytes_per_s": {"disk": 1e9}}, {"busbw_bytes_per_s": {"tp": 1e9}}),
        ({"busbw_bytes_per_s": {"tp.copy": 1e9}}, {"busbw_bytes_per_s": {"tp.all_reduce": 1e9}}),
        ({"busbw_bytes_per_s": {"tp.": 1e9}}, {"busbw_bytes_per_s": {"tp": 1e9}}),
        ({"busbw_bytes_per_s": {"tp": 0.0}}, {"busbw_bytes_per_s": {"tp": 1.0}}),
        # Terms of a whole run are checked with them.
        ({"gpu_hour_price": 2.0}, {"gpu_hour_price": 2.0, "tokens": 1e12}),
        ({"tokens": 0.0}, {"tokens": 1e12}),
    ],
)
def test_simulations_end_where_they_must(refused, taken):
    StepOptions(**taken)
    with pytest.raises(TraincastError):
        StepOptions(**refused)


def test_simulations_are_spelled_one_way(tmp_path):
    constants = tmp_path / "own.toml"
    constants.write_text("[gemm]\n")
    found = StepOptions(
        what_if="tp_comm*0.5",
        tokens="2T",
        tokens_per_step="4M",
        constants=str(constants),
        overlap_slowdown=0.2,
        network="Flow",
        busbw_bytes_per_s={"TP": "300GB/s", "dp.All-Reduce": 1e9},
    )
    assert found.what_if == ("tp_comm*0.5",)
    assert (found.tokens, found.tokens_per_step) == (2e12, 4e6)
    assert (found.constants.name, found.constants.text) == (str(constants), "[gemm]\n")
    assert found.overlap_slowdown == dict.fromkeys(OVERLAP_CLASSES, 0.2)
    assert found.network == "flow"
    assert found.busbw_bytes_per_s == {"tp": 300e9, "dp.all_reduce": 1e9}
    assert StepOptions(what_if=["a=1", "b=2"]).what_if == ("a=1", "b=2")


def test_a_slowdown_that_is_no_number_says_how_to_write_one():
    with pytest.raises(ConfigError, match="or such numbers by class"):
        StepOptions(overlap_slowdown="much")


def test_a_node_has_only_so_many_gpus_to_use():
    check_gpus_used(8, 8, "a DGX")
    check_gpus_used(None, 8)
    check_gpus_used("all", 8)
    with pytest.raises(ConfigError, match="is 9, but a node of a DGX has 8 GPUs"):
        check_gpus_used(9, 8, "a DGX")


def test_options_are_set_by_their_names_wherever_they_belong():
    found = make_options(tp=2, jitter=0.1, cluster="h200")
    assert (found.layout.tp, found.jitter, found.cluster) == (2, 0.1, "h200")
    changed = changed_options(found, tp=4, seeds=3)
    assert (changed.layout.tp, changed.jitter, changed.seeds, changed.cluster) == (4, 0.1, 3, "h200")
    assert make_options() == SimulateOptions()
    for unknown in ("layout", "tpp"):
        with pytest.raises(ConfigError, match=f"unknown option '{unknown}'"):
            make_options(**{unknown: 1})


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("tp=0.5", (0, 0.5, 0, 1)),
        ("dp=1,tp=0,ep=0.25,pp=0.5", (1, 0, 0.25, 0.5)),
        (" tp = 0.5 , pp=1e-6 ", (0, 0.5, 0, 1e-6)),
    ],
)
def test_shares_that_simai_hides_are_read_by_group(text, shares):
    found = parse_overlap(text)
    assert (found.dp, found.tp, found.ep, found.pp) == shares


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "is not of the form GROUP=SHARE"),
        ("cp=0.5", "is not of the form"),
        ("tp=0.5,tp=0.6", "each at most once"),
        ("tp=half", "'half' is not a share"),
        ("tp=1.01", "must be a share from 0 to 1"),
        ("tp=-0.01", "must be a share from 0 to 1"),
        ("pp=0", "SimAI divides by it"),
        ("pp=9e-7", "SimAI divides by it"),
    ],
)
def test_what_is_no_share_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_overlap(text)
    assert SimaiOverlap() == SimaiOverlap(dp=0.0, tp=0.0, ep=0.0, pp=1.0)


def test_types_of_elements_are_known_ones():
    with pytest.raises((ConfigError, UnknownNameError), match="int3"):
        LayoutOptions(dtype="int3")
