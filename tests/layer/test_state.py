"""State is sharded, exchanged and kept as ZeRO's and FSDP's papers say, for one layer."""

import pytest

from layer import product
from layer.cases import case_of
from layer.state import STATES

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
