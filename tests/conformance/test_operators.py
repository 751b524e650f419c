"""Every registered family of operators keeps these promises; a new one is tested by registering."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from traincast.cli.main import main
from traincast.errors import ConfigError, UnknownNameError
from traincast.estimate.factors import keys_of
from traincast.estimate.operators import OperatorCall, estimate_calls, estimate_operator, work_of
from traincast.estimate.operators.cost import operator_cost
from traincast.estimate.operators.families import FAMILIES
from traincast.hardware.gpu import load_gpu

H100 = load_gpu("h100")
EVERY = pytest.mark.parametrize("name", FAMILIES.names())
SIZES = {
    "batch": 2,
    "heads": 16,
    "kv_heads": 4,
    "qk_dim": 128,
    "v_dim": 128,
    "groups": 8,
    "topk": 2,
    "experts": 8,
    "dim": 128,
}
GPUS = ["h100", "a100", "b200", "gb300", "l4", "mi300x", "TPU-v5p", "Gaudi3", "A800", "H20"]


def call_of(name, dtype="bf16", **more):
    """Return a call of ordinary size."""
    shape = tuple(SIZES.get(each.name, 1024) for each in FAMILIES.get(name).sizes)
    return OperatorCall(family=name, shape=shape, dtype=dtype, **more)


def variants(name):
    """Yield a call of each direction with each choice of each option, and masked ones."""
    family, plain = FAMILIES.get(name), call_of(name)
    for direction in family.directions:
        yield replace(plain, direction=direction)
        for option, known in family.options.items():
            for value in known if isinstance(known, tuple) else ("2",):
                yield replace(plain, direction=direction, options=((option, value),))
        if family.masked:
            yield replace(plain, direction=direction, causal=True)
            yield replace(plain, direction=direction, window=16)


def moved(work):
    """Return FLOP and bytes of work, or of the parts it is made of."""
    works = [work_of(part) for part in work.parts] or [work]
    return sum(each.flops for each in works), sum(each.bytes_moved for each in works)


@EVERY
def test_a_family_says_what_its_calls_may_say(name):
    family = FAMILIES.get(name)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    names = [size.name for size in family.sizes]
    assert len(set(names)) == len(names)
    for place, size in enumerate(family.sizes):
        assert not isinstance(size.like, str) or size.like in names[:place]
    assert family.directions[0] == "forward"
    for call in variants(name):
        assert keys_of(family.cost_class(call), H100, "eager"), "a class of work that factors know"


@EVERY
def test_a_wrong_shape_names_the_sizes_in_their_order(name):
    family = FAMILIES.get(name)
    names = [each.name for each in family.sizes][family.drops_batch :]
    with pytest.raises(ConfigError) as caught:
        work_of(OperatorCall(family=name, shape=(2,) * 9, dtype="bf16"))
    assert str(caught.value) == f"shape: is {' x '.join('2' * 9)}; {name} takes {' x '.join(names)}"
    with pytest.raises(ConfigError, match="must be at least 1"):
        work_of(OperatorCall(family=name, shape=(1,) * (len(names) - 1) + (0,), dtype="bf16"))


@EVERY
def test_what_a_family_does_not_know_is_refused(name):
    call = call_of(name)
    with pytest.raises(UnknownNameError, match="direction"):
        work_of(replace(call, direction="sideways"))
    with pytest.raises(UnknownNameError, match="colour"):
        work_of(replace(call, options=(("colour", "red"),)))
    with pytest.raises(UnknownNameError, match="int3"):
        work_of(replace(call, dtype="int3"))
    for option, known in FAMILIES.get(name).options.items():
        if not isinstance(known, str):
            with pytest.raises((UnknownNameError, ConfigError), match=option):
                work_of(replace(call, options=((option, "nonsense"),)))
    if not FAMILIES.get(name).masked:
        with pytest.raises(ConfigError, match=f"causal: has no meaning for {name}"):
            work_of(replace(call, causal=True))


@EVERY
def test_work_never_falls_with_a_size(name):
    for call in variants(name):
        flops, moved_bytes = moved(work_of(call))
        assert flops >= 0
        assert moved_bytes > 0
        for place in range(len(call.shape)):
            larger = tuple(size * (2 if place == at else 1) for at, size in enumerate(call.shape))
            try:
                more_flops, more_bytes = moved(work_of(replace(call, shape=larger)))
            except ConfigError:
                continue  # these sizes do not go together
            assert more_flops >= flops
            assert more_bytes >= moved_bytes


@EVERY
def test_a_cost_is_above_the_peaks_and_the_same_in_columns(name):
    others = {("kernel", each) for each in ("fa1", "splash", "ck")}
    calls = [call for call in variants(name) if not others & set(call.options)]
    for call in calls:
        cost = estimate_operator(call, H100)
        dtype = work_of(call).bound_dtype or work_of(call).compute_dtype or call.dtype
        assert cost.time_s >= cost.bytes_moved / H100.hbm_bytes_per_s
        assert cost.time_s >= cost.flops / H100.peak_flops_per_s(dtype) or work_of(call).parts
    times_s = [estimate_operator(call, H100).time_s for call in calls]
    np.testing.assert_allclose(estimate_calls(calls, H100), times_s, rtol=1e-12)


@EVERY
@pytest.mark.parametrize("gpu", GPUS)
def test_there_is_a_cost_on_every_kind_of_gpu(name, gpu):
    cost = estimate_operator(call_of(name), load_gpu(gpu))
    assert 0 < cost.time_s < 1
    assert 0 < cost.utilisation <= 1
    assert cost.bound in ("compute", "memory", "latency")
    assert cost.confidence in ("high", "medium", "low")
    assert cost.source
    assert all(np.isfinite(value) for _, value in cost.terms)


@EVERY
def test_it_can_be_asked_for_by_the_names_of_its_sizes(name):
    call = call_of(name)
    sizes = dict(zip([size.name for size in FAMILIES.get(name).sizes], call.shape, strict=True))
    assert operator_cost(name.replace("_", "-"), sizes, gpu="h100").cost == estimate_operator(call, H100)


# --- a new one


@pytest.fixture
def hadamard(monkeypatch):
    """Return the family that docs/adding.md adds, registered as its file would be."""
    text = (Path(__file__).parents[2] / "docs" / "adding.md").read_text()
    (code,) = re.findall(r'```python\n("""Hadamard.*?)```', text, re.DOTALL)
    FAMILIES.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    exec(compile(code, "hadamard.py", "exec"), {"__name__": "hadamard"})  # noqa: S102 our own page
    return "hadamard"


def test_a_family_is_added_as_one_file_and_keeps_every_promise(hadamard):
    test_a_family_says_what_its_calls_may_say(hadamard)
    test_a_wrong_shape_names_the_sizes_in_their_order(hadamard)
    test_what_a_family_does_not_know_is_refused(hadamard)
    test_work_never_falls_with_a_size(hadamard)
    test_a_cost_is_above_the_peaks_and_the_same_in_columns(hadamard)
    for gpu in GPUS:
        test_there_is_a_cost_on_every_kind_of_gpu(hadamard, gpu)
    test_it_can_be_asked_for_by_the_names_of_its_sizes(hadamard)


def test_the_added_family_can_be_asked_for_on_the_command_line(hadamard, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["operator", hadamard, "--rows", "4096", "--width", "4096", "--option", "block=32", "--json"])
    cost = json.loads(capsys.readouterr().out)
    assert cost["flops"] == 5 * 4096 * 4096
    assert cost["bytes"] == 2 * 2 * 4096 * 4096
