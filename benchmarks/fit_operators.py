"""Fit the operators' constants and corrections to measured kernels, and print what was held out.

    python benchmarks/fit_operators.py [--data DIR] [--write] [--held-out] [--unseen]

Reads the kernel tables of the shared data (see data/README.md there), fits the roofline per GPU,
family and element type, then a grid to what the roofline leaves. `--held-out` first fits without a
fifth of the shapes (chosen by a hash of the shape) and prints the errors on these; `--write`
replaces `src/traincast/data/operators/{constants,corrections}.csv` by a fit to all rows.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import traincast
from traincast.calibrate.operator_defaults import defaults
from traincast.calibrate.operator_fit import (
    Key,
    Sample,
    fit_constants,
    fit_correction,
    free_constants,
    predict,
    samples_of,
)
from traincast.calibrate.operator_measurements import OperatorMeasurements, operators_of
from traincast.calibrate.tables import read_table
from traincast.estimate.operators.constants import ANY, FamilyConstants, shipped_constants, write_constants
from traincast.estimate.operators.contract import OperatorCall
from traincast.estimate.operators.corrections import Correction, write_corrections
from traincast.spec.gpus import GpuSpec

AICONFIGURATOR = "ai-dynamo/aiconfigurator (Apache-2.0)"
NEUSIGHT = "sitar-lab/NeuSight (MIT, Copyright (c) 2025 Georgia Institute of Technology and Microsoft Corporation)"
SIMUMAX = "MooreThreads/SimuMax (Apache-2.0)"
FILES = {
    "gemm_latency_measured.csv.gz": AICONFIGURATOR,
    "attention_fwd_latency_measured.csv.gz": AICONFIGURATOR,
    "moe_fwd_latency_measured.csv.gz": AICONFIGURATOR,
    "op_latency_measured.csv": NEUSIGHT,
    "training_kernel_efficiency_measured.csv": SIMUMAX,
}
NODES = {"bmm": (6, 7, 7, 7, 1), "gemm fp32": (9, 10, 10, 2), "gemm": (7, 8, 8, 1), "attention": (6, 8, 4)}
"""Nodes of the correction per size; others by their number of sizes."""
NODES_BY_SIZES = {1: (24,), 2: (12, 10)}
ROWS_FOR_CORRECTION = 100
LONG_S = 1e-4
"""Timings above it are hardly touched by events, launches and caches; memory rates are fitted to these alone."""
GROUPED_SHARE = 0.63
"""Rate of grouped over plain products in training runs (research/accuracy_prototype.md, section 2)."""
FUSED_NORM_SHARE = 0.75
"""Share of the memory rate that the fused norms of training stacks sustain."""
SHIPPED_FROM_TRAINING = ("attention_backward", "grouped_gemm")
"""Families whose constants come from SimuMax; its products agree with each other forward and backward within 3 %."""
ESTIMATES = (
    ("A100-SXM-80GB", "attention_fa1", 0.36, "FlashAttention: 25-40 % of peak (arXiv 2307.08691, abstract)"),
    ("A100-SXM-80GB", "attention_backward_fa1", 0.30, "as its forward pass (arXiv 2307.08691, abstract)"),
    ("A100-SXM-80GB", "attention_backward", 0.60, "FlashAttention-2: up to 63 % of peak (arXiv 2307.08691, 4.1)"),
    ("A100-SXM-80GB", "attention_triton", 0.46, "FlashAttention-2 is 1.3-1.5 times as fast (2307.08691, 4.1)"),
    ("A100-SXM-80GB", "attention_backward_triton", 0.30, "FlashAttention-2 is twice as fast (2307.08691, 4.1)"),
    ("H100-SXM-80GB", "attention_triton", 0.27, "as on A100: FlashAttention-2's over 1.4 (2307.08691, 4.1)"),
    ("H100-SXM-80GB", "attention_backward_triton", 0.17, "as on A100: half of FlashAttention-2's (2307.08691, 4.1)"),
    ("H100-SXM-80GB", "attention_fa1", 0.20, "a third of FlashAttention-3 (arXiv 2407.08608, figure 5)"),
    ("H100-SXM-80GB", "attention_backward_fa1", 0.15, "a third of FlashAttention-3 (arXiv 2407.08608, figure 6)"),
    ("H100-SXM-80GB", "attention_fa2", 0.38, "FlashAttention-2: 35 % of peak (arXiv 2407.08608, abstract)"),
    ("H100-SXM-80GB", "attention_backward_fa2", 0.33, "FlashAttention-3's is 1.5-1.75 times as fast (2407.08608, 4.1)"),
    ("H100-SXM-80GB", "attention_backward", 0.55, "FlashAttention-3: 450-580 of 989 TFLOP/s (2407.08608, figure 6)"),
)  # fmt: skip
"""What no table here measures: kernel generations, from the papers that brought them."""


def held_out(sample: Sample) -> np.ndarray:
    """Return which measurements are held out: a fifth, by a hash of their size and work."""
    first = np.unique(sample.owner_C, return_index=True)[1]
    words = zip(
        *(getattr(sample.columns, name)[first] for name in ("flops_N", "m_N", "n_N", "k_N", "bytes_N")), strict=True
    )
    digests = (hashlib.sha256("x".join(f"{value:g}" for value in each).encode()).digest()[0] for each in words)
    return np.array([digest % 5 == 0 for digest in digests])


def usual(call: OperatorCall, gpu: GpuSpec, time_s: float) -> bool:
    """Say whether a measured attention kernel is of the kind that training uses.

    Left out: windows that the kernel does not exploit, head sizes it falls back for, and a second
    series of head size 256 on Blackwell at a seventh of the rate of the first.
    """
    if call.family != "attention" or call.direction != "forward":
        return True
    if call.options:
        return call.window == 0
    head_dim, seq = call.shape[5], call.shape[1]
    rate = 2 * call.shape[0] * call.shape[3] * seq * seq * head_dim / time_s / gpu.peak_flops_per_s(call.dtype)
    slow = gpu.architecture == "blackwell" and head_dim == 256 and rate < 0.15 and time_s > LONG_S
    return call.window in (0, 8192) and head_dim in (64, 128, 256) and not slow


def fitted(key: Key, sample: Sample, source: str) -> tuple[FamilyConstants, Correction | None]:
    """Return the constants of a sample and their correction, None where the rows are too few."""
    gpu, family, dtype = key
    events = NEUSIGHT in source
    long = np.flatnonzero(sample.time_s_N >= LONG_S)
    plain = sample.columns.tiled or len(long) < 40
    base = FamilyConstants(gpu=gpu, family=family, dtype=dtype, source=f"fitted to {source}", confidence="high")
    if "attention" in family:
        base = replace(base, memory=0.8, floor_s=4e-6)
    constants = fit_constants(sample if plain else sample.select(long), base, free_constants(sample, events=events))
    if constants.rows < 50:
        constants = replace(constants, confidence="medium")
    if not sample.columns.tiled:
        constants = replace(constants, dtype=ANY)
    if len(sample) < ROWS_FOR_CORRECTION or len(sample.columns.flops_N) != len(sample):
        return constants, None
    sizes = sample.columns.coordinates_ND.shape[1]
    nodes = NODES.get(f"{family} {dtype}") or NODES.get(family) or NODES_BY_SIZES.get(sizes)
    return constants, None if nodes is None else fit_correction(sample, constants, nodes, smooth=0.1)


def samples(folder: Path) -> Iterator[tuple[Key, Sample, str]]:
    """Yield every sample of every table with its source."""
    for name, source in FILES.items():
        measured = operators_of(read_table(folder / name))
        kept = [
            row
            for row, (gpu, calls) in enumerate(zip(measured.gpu, measured.calls, strict=True))
            if usual(calls[0], gpu, measured.time_s[row])
        ]
        print(f"{name}: {len(kept)} rows, {len(measured.skipped)} skipped, {len(measured) - len(kept)} not fitted to")
        for key, sample in sorted(samples_of(measured.select(kept), shipped_constants()).items()):
            if source != SIMUMAX or key[1].removesuffix("_dgrad").removesuffix("_wgrad") in SHIPPED_FROM_TRAINING:
                yield key, sample, source


def grouped_together(folder: Path) -> Iterator[tuple[Key, Sample, str]]:
    """Yield SimuMax's grouped products with the three directions of a GPU as one sample."""
    measured = operators_of(read_table(folder / "training_kernel_efficiency_measured.csv"))
    rows = [row for row, calls in enumerate(measured.calls) if calls[0].family == "grouped_gemm"]
    forward = measured.select(rows)
    # The three directions are the same product with other sizes; the fit asks for one kind of work.
    same = OperatorMeasurements(
        gpu=forward.gpu,
        calls=tuple((replace(calls[0], direction="forward"),) for calls in forward.calls),
        time_s=forward.time_s,
        ids=forward.ids,
        op=forward.op,
        skipped=(),
    )
    for key, sample in samples_of(same, shipped_constants()).items():
        yield key, sample, SIMUMAX


def report(key: Key, sample: Sample, source: str) -> None:
    """Print the errors on held-out shapes, without and with the correction."""
    out = held_out(sample)
    if out.sum() < 5 or (~out).sum() < 20:
        return
    constants, correction = fitted(key, sample.select(np.flatnonzero(~out)), source)
    test = sample.select(np.flatnonzero(out))
    test = test.select(np.flatnonzero(test.time_s_N >= LONG_S))
    if not len(test):
        return
    level1 = predict(test, constants)
    line = f"{key[0]:20} {key[1]:22} {key[2]:9} {len(test):5} held out  roofline {_figures(level1, test.time_s_N)}"
    if correction is not None:
        corrected = (level1 - constants.event_s) * correction.factors(test.columns.coordinates_ND) + constants.event_s
        line += f"  corrected {_figures(corrected, test.time_s_N)}"
    print(line, flush=True)


def unseen(pools: dict[tuple[str, str], dict[str, tuple[Sample, str]]]) -> None:
    """Print for each GPU the errors of constants of the others, and of 20 timings of its own on top."""
    for (family, dtype), by_gpu in pools.items():
        fits = {gpu: fitted((gpu, family, dtype), sample, source) for gpu, (sample, source) in by_gpu.items()}
        for gpu, (sample, source) in by_gpu.items():
            others = [constants for name, (constants, _) in fits.items() if name != gpu]
            if len(others) < 3:
                continue
            test = sample.select(np.flatnonzero(sample.time_s_N >= LONG_S))
            wanted = fits[gpu][0].dtype
            median = next(row for row in defaults(others) if row.dtype == wanted)
            start = replace(median, gpu=gpu)
            line = (
                f"{gpu:20} {family:12} {dtype:9} {len(test):5} unseen {_figures(predict(test, start), test.time_s_N)}"
            )
            anchors = _anchors(test)
            tuned = fit_constants(test.select(anchors), start, free_constants(test, events=NEUSIGHT in source))
            rest = test.select(np.setdiff1d(np.arange(len(test)), anchors))
            print(f"{line}  with 20 timings {_figures(predict(rest, tuned), rest.time_s_N)}", flush=True)


def _anchors(sample: Sample) -> np.ndarray:
    """Return 20 measurements at even ranks of their time, which stands for asking a user for a spread of sizes."""
    order = np.argsort(sample.time_s_N, kind="stable")
    return np.sort(order[np.linspace(0, len(order) - 1, 20).astype(np.int64)])


def _figures(predicted: np.ndarray, measured: np.ndarray) -> str:
    errors = np.abs(predicted / measured - 1)
    return f"mean {errors.mean():6.1%} median {np.median(errors):6.1%} p90 {np.quantile(errors, 0.9):6.1%}"


def derived(rows: list[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants that follow from the fitted ones and from papers."""
    by_key = {(row.gpu, row.family, row.dtype): row for row in rows}
    for row in rows:
        if row.family == "gemm" and row.dtype != "fp32" and (row.gpu, "grouped_gemm", row.dtype) not in by_key:
            yield replace(
                row,
                family="grouped_gemm",
                compute=row.compute * GROUPED_SHARE,
                rows=0,
                median_error=None,
                p90_error=None,
                source=f"its gemm x {GROUPED_SHARE}: training runs (research/accuracy_prototype.md, section 2)",
                confidence="medium",
            )
    for gpu, family, compute, source in ESTIMATES:
        forward = by_key[gpu, "attention", "bf16"]
        # The share is of the whole kernel at long sequences; what the softmax costs is in it.
        yield replace(forward, family=family, compute=compute, edge=1.0, k_fill=64.0, wave=0.5, unhidden=0.1,
                      rows=0, median_error=None, p90_error=None, source=source, confidence="medium")  # fmt: skip
    yield from _part_of_500_watt(by_key)
    yield FamilyConstants(
        gpu=ANY,
        family="norm",
        dtype="bf16",
        memory=FUSED_NORM_SHARE,
        source="an estimate: fused norms of apex, Transformer Engine and Triton; those measured here are PyTorch 2.1's",
    )


def _part_of_500_watt(by_key: dict[Key, FamilyConstants]) -> Iterator[FamilyConstants]:
    for family in ("gemm", "attention", "grouped_gemm"):
        row = by_key.get(("H100-SXM-80GB", family, "bf16"))
        if row is not None:
            yield replace(
                row,
                gpu="H100-96GB-HBM2e-500W",
                compute=row.compute * 0.53 / 0.71,
                rows=0,
                median_error=None,
                p90_error=None,
                source="H100-SXM-80GB x 0.53 / 0.71: training runs of both (research/accuracy_prototype.md, section 2)",
                confidence="medium",
            )


def main() -> int:
    """Fit, print and perhaps write; return the exit code."""
    parser = argparse.ArgumentParser(description="fit operator constants to measured kernels")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the measured CSV files")
    parser.add_argument("--write", action="store_true", help="replace the shipped constants and corrections")
    parser.add_argument("--held-out", action="store_true", help="print the errors on a fifth of the shapes left out")
    parser.add_argument("--unseen", action="store_true", help="print the errors on each GPU from the others' constants")
    given = parser.parse_args()
    missing = next((name for name in FILES if not (given.data / name).is_file()), None)
    if missing is not None:
        print(f"{given.data / missing} is missing; say with --data where the measured kernels are", file=sys.stderr)
        return 1
    rows: list[FamilyConstants] = []
    corrections: list[Correction] = []
    every = [each for each in samples(given.data) if not each[0][1].startswith("grouped_gemm") or each[2] != SIMUMAX]
    if given.unseen:
        pools: dict[tuple[str, str], dict[str, tuple[Sample, str]]] = {}
        for (gpu, family, dtype), sample, source in every:
            if family in ("gemm", "bmm", "elementwise", "norm", "softmax") and len(sample) >= 40:
                pools.setdefault((family, dtype), {})[gpu] = (sample, source)
        unseen(pools)
        return 0
    for key, sample, source in (*every, *grouped_together(given.data)):
        if len(sample) < 5:
            continue
        if given.held_out:
            report(key, sample, source)
        constants, correction = fitted(key, sample, source)
        rows.append(constants)
        corrections += [] if correction is None else [replace(correction, dtype=constants.dtype)]
        print(constants)
    rows += list(derived(rows))
    rows += list(defaults(rows))
    if given.write:
        folder = Path(traincast.__file__).parent / "data" / "operators"
        (folder / "constants.csv").write_text(write_constants(rows), encoding="utf-8")
        (folder / "corrections.csv").write_text(write_corrections(corrections), encoding="utf-8")
        print(f"wrote {len(rows)} constants and {len(corrections)} corrections to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
