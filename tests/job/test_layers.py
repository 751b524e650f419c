"""Layers fall on virtual stages as frameworks put them: none is lost, and uneven ones go where they go there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import ConfigError, InfeasibleError
from traincast.job.layers import Split, split_layers


@given(
    layers=st.integers(1, 200),
    pp=st.integers(1, 16),
    vpp=st.integers(1, 8),
    uneven=st.sampled_from(["short_last", "balanced"]),
    counts=st.booleans(),
)
def test_no_layer_is_lost_and_stages_are_near_each_other(layers, pp, vpp, uneven, counts):
    split = Split(layers=layers, pp=pp, vpp=vpp, uneven=uneven, counts_embedding=counts)
    try:
        found, rule = split_layers(split)
    except InfeasibleError:
        assert layers < pp * vpp
        return
    assert sum(found) == layers
    assert len(found) == pp * vpp
    assert min(found) >= 0
    assert max(found) <= -(-layers // (pp * vpp)) + counts
    assert str(layers) in rule
    if layers % (pp * vpp) == 0:
        assert len(set(found)) == 1
    if uneven == "balanced" and not counts:
        assert max(found) - min(found) <= 1


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "counts", "expected"),
    [
        (78, 12, 1, False, (7,) * 11 + (1,)),  # BLOOM's trials: 78 layers leave a short last stage
        (70, 12, 1, True, (5, *(6,) * 10, 5)),  # BLOOM itself: 70 layers and both ends make 72
        (61, 16, 1, True, (4,) * 15 + (1,)),  # DeepSeek-V3 on 16 stages
        (126, 8, 8, True, (1, *(2,) * 62, 1)),  # Llama 3.1 405B
        (30, 4, 8, True, (0, *(1,) * 30, 0)),  # its proxy of 30 layers: the ends hold embedding and head alone
    ],
)
def test_splits_of_published_runs(layers, pp, vpp, counts, expected):
    assert split_layers(Split(layers=layers, pp=pp, vpp=vpp, counts_embedding=counts))[0] == expected


def test_layers_that_round_up_to_empty_stages_are_spread_instead():
    found, _ = split_layers(Split(layers=22, pp=16, vpp=1))
    assert found == (2,) * 6 + (1,) * 10


def test_given_ends_take_their_layers_over_all_their_virtual_stages():
    found, _ = split_layers(Split(layers=61, pp=8, vpp=1, first=6, last=7))
    assert found == (6, *(8,) * 6, 7)
    found, _ = split_layers(Split(layers=20, pp=3, vpp=2, first=4))
    assert found == (2, 4, 4, 2, 4, 4)
    with pytest.raises(InfeasibleError, match="leave 57, which do not divide over the other 7 stages"):
        split_layers(Split(layers=61, pp=8, vpp=1, first=4))
    with pytest.raises(InfeasibleError, match="do not divide into vpp 2"):
        split_layers(Split(layers=21, pp=3, vpp=2, first=5))
    with pytest.raises(ConfigError, match="first_stage_layers"):
        split_layers(Split(layers=8, pp=1, vpp=1, first=4))


def test_counted_embedding_must_divide():
    found, _ = split_layers(Split(layers=31, pp=4, vpp=1, embedding=True))
    assert found == (7, 8, 8, 8)
    with pytest.raises(InfeasibleError, match="with the embedding and the head counted as one each"):
        split_layers(Split(layers=31, pp=4, vpp=1, embedding=True, head=True))
