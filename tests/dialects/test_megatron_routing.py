"""What Megatron-LM's flags say of how tokens are spread over experts."""

import pytest

from traincast.dialects import draft_like

EXPERTS = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --num-experts 8 --expert-model-parallel-size 2"
BATCH = "--micro-batch-size 1 --global-batch-size 64 --seq-length 1024"


@pytest.mark.parametrize(
    ("flags", "routing"),
    [
        ("", None),
        ("--moe-router-force-load-balancing", "balanced"),
        ("--moe-router-force-load-balancing --moe-aux-loss-coeff 0.01 --train-iters $STEPS", "balanced"),
        ("--moe-aux-loss-coeff 0.01", None),
    ],
)
def test_a_router_that_is_forced_is_balanced(flags, routing):
    draft = draft_like("megatron", f"{EXPERTS} {BATCH} {flags}".split())
    assert draft.fields.get("moe_routing") == routing
