"""State is sharded, exchanged and kept as ZeRO's and FSDP's papers say, for one layer."""

import pytest

from layer import product
from layer.cases import case_of
from layer.state import LAYER, STATES

each_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)


@each_state
def test_exchanges_of_a_step(state):
    found = product.state_bytes(case_of(*state.case), **state.fields)
    assert found == pytest.approx(state.exchanges, rel=1e-9)


@each_state
def test_updated_parameters(state):
    assert product.updated(case_of(*state.case), **state.fields) == pytest.approx(state.updated, abs=2)


@pytest.mark.parametrize("state", [each for each in STATES if each.kept], ids=lambda state: state.name)
def test_kept_state(state):
    assert product.states(case_of(*state.case), **state.fields) == pytest.approx(state.kept, rel=1e-9)


GPT3, DEEPSEEK = case_of("gpt3-175b", "alone"), case_of("deepseek-v3", "ep 8")
GPT3_LAYER = 12 * 12288**2 + 13 * 12288
DEEPSEEK_LAYER = 187_107_328 + 14_336 + 1_835_008 + 44_040_192
"""All of a layer but its routed experts, which have no replicas here."""


@pytest.mark.parametrize(
    ("case", "layers", "fields", "elements"),
    [
        (case_of("llama3-70b", "alone"), 2, {"gpus": 2}, 2 * LAYER + 2 * 128_256 * 8192 + 8192),
        (case_of("llama3-70b", "alone"), 2, {"gpus": 4, "pp": 2}, 2 * LAYER + 2 * 128_256 * 8192 + 8192),
        # A tied table is there once, on two stages twice; 50,257 tokens are padded to 393 x 128.
        (GPT3, 2, {"gpus": 2}, 2 * GPT3_LAYER + (50_304 + 2048 + 2) * 12288),
        (GPT3, 2, {"gpus": 4, "pp": 2}, 2 * GPT3_LAYER + (2 * 50_304 + 2048 + 2) * 12288),
        # Of 51,200 rows, a multiple of 8 x 128, each of eight ranks has an eighth.
        (case_of("gpt3-175b", "tp 8"), 2, {"gpus": 16}, 2 * 226_576_896 + (51_200 // 8 + 2048 + 2) * 12288),
        (DEEPSEEK, 1, {"gpus": 8}, DEEPSEEK_LAYER + 2 * 129_280 * 7168 + 7168),
        (DEEPSEEK, 1, {"gpus": 8, "further": 1}, 2 * DEEPSEEK_LAYER + 2 * (129_280 * 7168 + 7168**2) + 4 * 7168),
    ],
)
def test_gradients_of_whole_models(case, layers, fields, elements):
    found = product.all_state_bytes(case, layers, zero=0, grad_reduce_bytes=4, **fields)
    assert found == {("dp", "all_reduce"): 4 * elements}
