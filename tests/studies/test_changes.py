"""The judge of pairs with one change: what counts as advice that names the change, and with the right sign."""

from types import SimpleNamespace

import pytest

from judges.changes import Replayed


def advice(saving_s=1.0, alone_s=0.0, **fields):
    return SimpleNamespace(fields=fields, saving_s=saving_s, alone_s=alone_s)


def replayed(*given, ratio=0.8, measured=0.9, **changed):
    return Replayed(SimpleNamespace(ratio=measured), ratio, given, changed)


def test_advice_names_the_change_by_its_field_and_value():
    others = [advice(overlap_tp=True)] * 4
    assert replayed(*others, advice(recompute="none"), recompute="none").is_told
    sixth = replayed(*others, advice(tp=4), advice(recompute="none"), recompute="none")
    assert (sixth.place, sixth.is_told) == (6, False)
    assert replayed(advice(recompute="full"), recompute="none").place is None
    assert replayed(recompute="none").place is None
    # Names come from documents as lists.
    assert replayed(advice(cuda_graph_scope=["attn"]), cuda_graph_scope=("attn",)).place == 1


def test_what_saves_nothing_is_no_advice():
    assert replayed(advice(0.0, -1.0, tp=4), tp=4).place is None
    assert replayed(advice(0.0, 1.0, tp=4), tp=4).place == 1


@pytest.mark.parametrize(("ratio", "measured", "right"), [(0.8, 0.9, True), (1.1, 0.9, False), (1.1, 1.2, True)])
def test_the_sign_is_which_side_is_faster(ratio, measured, right):
    assert replayed(ratio=ratio, measured=measured).right_sign is right
