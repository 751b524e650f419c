r"""Time attention kernels on a GPU of one's own, forward and backward, over lengths, heads and head sizes.

    python studies/attention_kernels.py OUT.csv [--minutes 4]

Needs PyTorch alone: FlashAttention 2 and cuDNN's kernel as `scaled_dot_product_attention` runs them, in bf16, causal,
of all keys, and of the last queries of a sequence that ranks share. Each kernel is recorded into a graph, so that the
host takes no part, and its backward pass runs alone. Cases come in a random order: a run that is cut short has some of
every kind.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from expert_gemms import FEWEST, FLUSHED_BYTES, WRITTEN_EVERY_S, asked, timed, write

KERNELS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
HEADS = ((32, 8, 128, 128), (8, 8, 128, 128), (4, 1, 128, 128), (32, 32, 64, 64), (12, 12, 64, 64), (8, 8, 64, 64))
"""Heads, heads of keys and values, and the sizes of a query and of a value head."""
WIDE = ((16, 16, 256, 256), (20, 20, 96, 96), (128, 128, 192, 128), (16, 16, 192, 128), (16, 16, 192, 192))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
SHARED = ((4096, 32768), (8192, 65536), (4096, 8192), (2048, 16384))
"""Queries that see all of so many keys: what a rank of a ring computes."""
FEWEST_TOKENS, MOST_TOKENS = 8192, 65536
LONGEST_S, SLOWEST_FLOPS = 0.4, 250e12
DROPOUT = 0.1
LONG_S, FEWEST_LONG = 0.01, 4
CLOCK_EVERY = 16


class Case(NamedTuple):
    """One attention."""

    kernel: str
    direction: str
    batch: int
    queries: int
    keys: int
    heads: tuple[int, int, int, int]
    causal: bool
    dropout: float = 0.0

    @property
    def flops(self) -> float:
        """FLOP of scores that are not masked."""
        heads, _, qk_dim, v_dim = self.heads
        width = 3 * qk_dim + 2 * v_dim if self.direction == "backward" else qk_dim + v_dim
        return 2.0 * self.batch * heads * self.queries * self.keys * width * (0.5 if self.causal else 1.0)

    def cells(self) -> dict[str, str]:
        """Return what a row of `traincast measure` says of it."""
        shape = (self.batch, self.queries, self.keys, *self.heads)
        return {
            "family": "attention",
            "shape": "x".join(map(str, shape)),
            "dtype": "bf16",
            "direction": self.direction,
            "options": f"kernel={self.kernel}" + (" dropout=yes" if self.dropout else ""),
            "causal": str(self.causal).lower(),
        }


def cases() -> list[Case]:
    """Return what is timed: both directions of a kernel together, the rest in a random order."""
    found = [each for each in _all_cases() if each.flops / SLOWEST_FLOPS < LONGEST_S]
    random.Random(0).shuffle(found)  # noqa: S311 - no secret
    return found


def _all_cases() -> Iterator[Case]:
    for kernel, heads, length in product(KERNELS, (*HEADS, *WIDE), LENGTHS):
        few = heads in WIDE and length not in {2048, 4096, 8192, 32768, 131072}
        for tokens in () if few else sorted({max(length, FEWEST_TOKENS), max(length, 2 * FEWEST_TOKENS)}):
            if tokens > MOST_TOKENS and heads[0] > 32:
                continue
            for causal in (True, False) if length in {2048, 8192} and tokens == FEWEST_TOKENS else (True,):
                yield Case(kernel, "both", tokens // length, length, length, heads, causal)
    for kernel, heads, (queries, keys) in product(KERNELS, HEADS[:2], SHARED):
        yield Case(kernel, "both", 1, queries, keys, heads, causal=False)
    for kernel, heads, length in product(KERNELS, (HEADS[1], HEADS[3]), (2048, 4096)):
        yield Case(kernel, "both", FEWEST_TOKENS // length, length, length, heads, causal=True, dropout=DROPOUT)


def both_ways(case: Case) -> Iterator[tuple[Case, Callable[[], Any]]]:
    """Yield what runs a case forward, and backward."""
    heads, kv_heads, qk_dim, v_dim = case.heads
    query = _random(case.batch, case.queries, heads, qk_dim)
    key, value = _random(case.batch, case.keys, kv_heads, qk_dim), _random(case.batch, case.keys, kv_heads, v_dim)
    inputs = [each.transpose(1, 2).requires_grad_() for each in (query, key, value)]

    def forward() -> Any:  # noqa: ANN401
        with sdpa_kernel(KERNELS[case.kernel]):
            return functional.scaled_dot_product_attention(
                *inputs, dropout_p=case.dropout, is_causal=case.causal, enable_gqa=kv_heads != heads
            )

    yield case._replace(direction="forward"), forward
    out = forward()
    gradient = torch.randn_like(out)
    torch.cuda.synchronize()
    yield (
        case._replace(direction="backward"),
        lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True),
    )


def _random(*shape: int) -> Any:  # noqa: ANN401
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main() -> int:
    """Time what the minutes allow; return the exit code."""
    parser = argparse.ArgumentParser(description="time attention kernels on this machine's GPU")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--minutes", type=float, default=4.0)
    given = parser.parse_args()
    begin, flush = time.monotonic(), torch.empty(FLUSHED_BYTES // 4, device="cuda", dtype=torch.int32)
    driver, limit = asked("driver_version,power.limit")
    fixed = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "driver": driver, "power_limit_w": limit}
    rows: list[dict[str, str]] = []
    written, stream = begin, torch.cuda.Stream()
    for count, case in enumerate(cases()):
        if time.monotonic() - begin > 60 * given.minutes:
            break
        with torch.cuda.stream(stream):
            rows += [row | fixed for row in _rows(case, flush)]
        rows[-1]["sm_clock_mhz"] = asked("clocks.sm")[0] if count % CLOCK_EVERY == 0 else ""
        torch.cuda.empty_cache()
        if time.monotonic() - written > WRITTEN_EVERY_S:
            write(given.out, rows)
            written = time.monotonic()
            print(f"{len(rows)} timed, {written - begin:.0f} s", flush=True)
    write(given.out, rows)
    return 0


def _rows(case: Case, flush: Any) -> Iterator[dict[str, str]]:  # noqa: ANN401
    blank, done = dict.fromkeys(("time_s", "spread", "repeats", "skipped", "sm_clock_mhz"), ""), case
    try:
        for done, run in both_ways(case):
            fewest = FEWEST_LONG if done.flops / SLOWEST_FLOPS > LONG_S else FEWEST
            yield done.cells() | blank | timed(run, flush, fewest)
    except (RuntimeError, ValueError) as error:
        torch.cuda.synchronize()
        yield done.cells() | blank | {"skipped": " ".join(str(error).split())[:120]}


if __name__ == "__main__":
    sys.exit(main())
