"""Fit the operators' constants and corrections to measured kernels, and print what was held out.

    python studies/fit_operators.py [--data DIR] [--write] [--held-out] [--unseen]

Reads the kernel tables of `studies/data` (its README says whose they are), fits the roofline per GPU,
family and element type, then a grid to what the roofline leaves. `--held-out` first fits without a
fifth of the shapes (chosen by a hash of the shape) and prints the errors on these; `--write`
replaces `src/traincast/data/operators/{constants,corrections}.csv` by a fit to all rows.
"""

import argparse
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import traincast
from datafiles import DATA, table_path
from published.reading import read_published
from traincast.calibration.operator_calibration import constants_from_few
from traincast.calibration.operator_fit import Key, Timings, predict, samples_of
from traincast.calibration.operator_recipe import defaults, fitted, is_held_out, usual
from traincast.calibration.operators import LONG_S, operators_of
from traincast.calibration.tables import Row
from traincast.estimate.clocks import gemm_slowdown
from traincast.estimate.operators.constants import (
    ANY,
    Correction,
    FamilyConstants,
    OperatorConstants,
    shipped_constants,
    write_constants,
)
from traincast.hardware.dtypes import ELEMENT_TYPES
from traincast.hardware.gpu import load_gpu
from written import write_corrections

AICONFIGURATOR = "ai-dynamo/aiconfigurator (Apache-2.0)"
AMD = "timings on AMD's GPUs (studies/data/amd_kernels.csv.gz)"
NEUSIGHT = "sitar-lab/NeuSight (MIT, Copyright (c) 2025 Georgia Institute of Technology and Microsoft Corporation)"
SIMUMAX = "MooreThreads/SimuMax (Apache-2.0)"
OWN = "timings on one H100 (studies/data/expert_gemms_h100.csv.gz)"
OWN_ATTENTION = "timings on one H100 (studies/data/attention_kernels_h100.csv.gz)"
FILES = {
    "gemm_latency_measured.csv": AICONFIGURATOR,
    "attention_fwd_latency_measured.csv": AICONFIGURATOR,
    "moe_fwd_latency_measured.csv": AICONFIGURATOR,
    "amd_kernels.csv": AMD,
    "op_latency_measured.csv": NEUSIGHT,
    "training_kernel_efficiency_measured.csv": SIMUMAX,
    "expert_gemms_h100.csv": OWN,
    "attention_kernels_h100.csv": OWN_ATTENTION,
}
GROUPED_SHARE = 0.92
"""Rate of GEMMs of experts in one kernel over plain ones: the mean of constants that `traincast calibrate` fitted to
PyTorch's on an H100 (docs/published-runs.md). Experts one after the other are plain GEMMs."""
GROUPED = ("grouped_gemm", "grouped_gemm_dgrad", "grouped_gemm_wgrad")
GAINS = {"fp8": 1.91, "fp8_block": 1.76, "mxfp8": 1.83, "nvfp4": 3.48}
"""Rates of GEMMs of cast inputs over those in bf16, on a B300, in blocks on an H200, in fp8 on both alike. Source:
Transformer Engine, docs/examples/gemm_profiling (docs/published-runs.md)."""
AMD_LIBRARIES = {
    ("MI300X", "gemm", "bf16"): ("hipBLASLt",),
    ("MI300X", "gemm", "fp8"): ("hipBLASLt",),
    ("MI300X", "grouped_gemm", "bf16"): ("CK",),
    ("MI300X", "grouped_gemm", "fp8"): ("CK",),
    ("MI300X", "attention", "bf16"): ("AITER asm v3", "AITER asm v3 a32"),
    ("MI355X", "gemm", "bf16"): ("hipBLASLt",),
    ("MI355X", "gemm", "fp8"): ("AITER CK",),
    ("MI355X", "gemm", "mxfp8"): ("HipKittens",),
    ("MI355X", "gemm", "mxfp4"): ("AITER asm",),
    ("MI355X", "grouped_gemm", "bf16"): ("hipBLASLt", "grouped_gemm (hipBLASLt)", "Triton"),
    ("MI355X", "attention", "bf16"): (
        "AITER asm v3",
        "AITER asm v3 a16",
        "flash-attention CK",
        "Triton",
        "PyTorch SDPA",
    ),
}
"""Whose kernels training on AMD's GPUs ran until the middle of 2026. Attention's backward pass sums dQ in fp32 (a32) on
MI300X and MI325X and in bf16 (a16) on MI355X and MI350X, as ROCm/MAD sets it (NVTE_CK_IS_V3_ATOMIC_FP32).
FlashAttention 2 has composable kernels on ROCm (its README), and PyTorch's own attention AOTriton's."""
AMD_ATTENTION = ("MI300X-192GB", ("fa2", "triton"), 0.70, "x .70, as of AITER's kernels: .37 and .53 of the peak")
"""Share of the peak that the others' attention is taken to reach on a GPU over that on an MI355X."""
AMD_GRADIENTS = ("MI355X", 0.88, "x .88: 1,350 over 1,535 TFLOP/s, means of hipBLASLt's 84 shapes (Primus-Turbo)")
"""Rate of bf16 gradients over the forward pass's where means alone are printed (mi300x-vs-mi355x-baseline.md)."""
FUSED_NORM_SHARE = 0.75
"""Share of the memory rate that the fused norms of training stacks sustain."""
SHIPPED_FROM_TRAINING = ("attention_backward", "grouped_gemm")
"""Families whose constants come from SimuMax and our own timings: plain GEMMs have those of the larger table."""
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
    ("H100-SXM-80GB", "attention_backward", 0.55, "FlashAttention-3: 450-580 of 989 TFLOP/s (2407.08608, figure 6)"),
    ("H200-SXM-141GB", "attention_triton", 0.27, "as on H100, the same chip; its own table is of FlashAttention-3"),
    ("H200-SXM-141GB", "attention_fa1", 0.20, "as on H100, the same chip; its own table is of FlashAttention-3"),
)  # fmt: skip
"""What no table here measures: kernel generations, from the papers that brought them."""
SCAN = FamilyConstants(gpu=ANY, family="state_space", dtype=ANY, compute=1.0, memory=0.85, unhidden=1.0, rows=8,
                       median_error=0.0539, p90_error=0.0971, confidence="medium",
                       source="passes of state-spaces/mamba e9594ce on one H100 SXM, Triton 3.6: "
                       "studies/data/state_space_kernels_h100.csv.gz")  # fmt: skip
"""Scans in chunks: what is bound by memory and what is not are kernels of their own, so that nothing hides
(`traincast.estimate.operators.families.state_space`)."""


_CUDNN = "cudnn-frontend, benchmark/sdpa_benchmark_training"
_LIKE_2025 = f"{_CUDNN}/artifacts (cuDNN 9.13 and later of 2025, NGC 25.09)"
EIGHT_BIT_ATTENTION = (
    *((gpu, dtype, forward, backward, f"{_LIKE_2025}: x {forward} and {backward} of bf16, causal, heads of 128")
      for gpu, dtype, forward, backward in (
        ("B200-SXM-180GB", "fp8", 1.35, 1.30), ("B200-SXM-180GB", "mxfp8", 1.26, 1.15),
        ("GB200-186GB", "fp8", 1.62, 1.26), ("GB200-186GB", "mxfp8", 1.51, 1.12),
        ("GB300-279GB", "fp8", 1.39, 1.32), ("GB300-279GB", "mxfp8", 1.24, 1.06))),
    *((gpu, "fp8", 1.47, 0.9, f"{_CUDNN}/results: x 1.47 and 0.9 of bf16, causal, heads of 128, H200")
      for gpu in ("H100-SXM-80GB", "H200-SXM-141GB")),
)  # fmt: skip
"""Rates of cuDNN's attention in 8 bits over what rows in bf16 say, forward and backward, at 4,096 and 8,192 tokens
of 128 heads; the tables of inference have forward passes alone. MXFP8 is slower than FP8 as in Llama 3.1 of the same
benchmark. Blackwell Ultra has twice the exponentials: less of what 8 bits gain is lost to the softmax there."""

BACKWARD_OF_GB300 = ("GB300-279GB", 1.08, f"B200-SXM-180GB x 1.08: {_CUDNN}/results, GB300 over GB200 in bf16")
"""Rate of attention's backward pass there over that of the B200 that was timed, at the same tokens."""


def held_out(sample: Timings) -> np.ndarray:
    """Return which measurements of a sample are held out: a fifth, by a hash of their size and work."""
    first = np.unique(sample.owner_C, return_index=True)[1]
    columns = sample.columns
    sizes = (columns.flops_N, columns.m_N, columns.n_N, columns.k_N, columns.bytes_N)
    return np.array([is_held_out(each) for each in zip(*(size[first] for size in sizes), strict=True)])


def samples(folder: Path) -> Iterator[tuple[Key, Timings, str]]:
    """Yield every sample of every table with its source."""
    for name, source in FILES.items():
        table = read_published(table_path(name, folder))
        if source == AMD:
            table = replace(table, rows=tuple(filter(_ran_in_training, table.rows)))
        measured = operators_of(table)
        kept = [
            row
            for row, (gpu, calls) in enumerate(zip(measured.gpu, measured.calls, strict=True))
            if usual(calls[0], gpu, measured.time_s[row])
        ]
        print(f"{name}: {len(kept)} rows, {len(measured.skipped)} skipped, {len(measured) - len(kept)} not fitted to")
        for key, sample in sorted(samples_of(measured.select(kept), shipped_constants()).items()):
            family = key[1].removesuffix("_dgrad").removesuffix("_wgrad")
            if source == AMD:
                yield key, *_at_full_clock(key[0], sample)
            elif source not in (SIMUMAX, OWN) or family in SHIPPED_FROM_TRAINING:
                yield key, sample, source


def _ran_in_training(row: Row) -> bool:
    """Say whether a row of AMD's is of a kernel that training ran, and long enough for the power limit to hold it."""
    key = (row.cells["gpu"], row.cells["family"], row.cells["dtype"])
    return row.cells["library"] in AMD_LIBRARIES.get(key, ()) and row.time_s() >= LONG_S


def _at_full_clock(gpu: str, sample: Timings) -> tuple[Timings, str]:
    """Return a sample of AMD's, whose loops run for 10 ms and more, at the full clock, and its source.

    A step on the same GPU then takes what was timed; on its kin it takes what their own power limit allows.
    """
    slowdown = gemm_slowdown(load_gpu(gpu))
    source = f"{AMD}, at the power limit: times over {slowdown:.3f}"
    return replace(sample, time_s_N=sample.time_s_N / slowdown), source


def of_amd(rows: list[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants of AMD's GPUs that follow from the fitted ones.

    Both gradients of a GEMM were timed together and share their constants. Types without such timings take the forward
    pass's, lest those of bf16 come before them.
    """
    by_key = {(row.gpu, row.family, row.dtype): row for row in rows}
    other, kernels, less, like = AMD_ATTENTION
    gpu, share, why = AMD_GRADIENTS
    for row in rows:
        if row.gpu == gpu and row.family.startswith("attention") and row.family.endswith(kernels):
            source = f"that of {gpu} {like}"
            yield replace(_underived(row), gpu=other, compute=row.compute * less, source=source)
        if row.family.endswith("_dgrad") and (row.gpu, row.family.replace("dgrad", "wgrad"), row.dtype) not in by_key:
            yield replace(row, family=row.family.replace("dgrad", "wgrad"))
        if row.family == "gemm":
            slower = row.gpu == gpu and row.dtype == "bf16"
            for family in ("gemm_dgrad", "gemm_wgrad"):
                if slower or row.dtype != "bf16":
                    compute = row.compute * (share if slower else 1.0)
                    source = f"its gemm {row.dtype}{' ' + why if slower else ''}"
                    yield replace(_underived(row), family=family, compute=compute, source=source)
            if (row.gpu, "grouped_gemm", row.dtype) not in by_key:
                yield from _grouped(row, by_key)


def report(key: Key, sample: Timings, source: str) -> None:
    """Print the errors on held-out shapes, without and with the correction."""
    out = held_out(sample)
    if out.sum() < 5 or (~out).sum() < 20:
        return
    constants, correction = fitted(key, sample.select(np.flatnonzero(~out)), source, events=NEUSIGHT in source)
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


def unseen(pools: dict[tuple[str, str], dict[str, tuple[Timings, str]]]) -> None:
    """Print for each GPU the errors of constants of the others, and of 20 timings of its own on top."""
    for (family, dtype), by_gpu in pools.items():
        fits = {
            gpu: fitted((gpu, family, dtype), sample, source, events=NEUSIGHT in source)
            for gpu, (sample, source) in by_gpu.items()
        }
        errors: list[tuple[float, float]] = []
        for gpu, (sample, source) in by_gpu.items():
            others = {name: fit for name, fit in fits.items() if name != gpu}
            if len(others) >= 3:
                errors.append(_unseen(gpu, sample, others, events=NEUSIGHT in source))
        if errors:
            before, after = np.mean(errors, axis=0)
            print(f"{'mean over GPUs':20} {family:12} {dtype:9}       unseen {before:.1%}  with 20 timings {after:.1%}")


def _unseen(
    gpu: str, sample: Timings, others: dict[str, tuple[FamilyConstants, Correction | None]], *, events: bool
) -> tuple[float, float]:
    rows = [constants for constants, _ in others.values()]
    grids = tuple(replace(grid, dtype=constants.dtype) for constants, grid in others.values() if grid is not None)
    start = replace(next(row for row in defaults(rows) if row.dtype == rows[0].dtype), gpu=gpu)
    known = OperatorConstants(tuple(rows), grids)
    test = sample.select(np.flatnonzero(sample.time_s_N >= LONG_S))
    without = predict(test, start)
    anchors = _anchors(test)
    tuned = constants_from_few(test.select(anchors), replace(start, event_s=0.0), known, events=events)
    rest = test.select(np.setdiff1d(np.arange(len(test)), anchors))
    with_20 = predict(rest.corrected(known.correction(tuned) if tuned.grid_of else None), tuned)
    print(
        f"{gpu:20} {start.family:12} {rows[0].dtype:9} {len(test):5} unseen {_figures(without, test.time_s_N)}"
        f"  with 20 timings {_figures(with_20, rest.time_s_N)}  {tuned.grid_of}",
        flush=True,
    )
    return _mean_error(without, test.time_s_N), _mean_error(with_20, rest.time_s_N)


def _mean_error(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))


def _anchors(sample: Timings) -> np.ndarray:
    """Return 20 measurements at even ranks of their time, which stands for asking a user for a spread of sizes."""
    order = np.argsort(sample.time_s_N, kind="stable")
    return np.sort(order[np.linspace(0, len(order) - 1, 20).astype(np.int64)])


def _figures(predicted: np.ndarray, measured: np.ndarray) -> str:
    errors = np.abs(predicted / measured - 1)
    return f"mean {errors.mean():6.1%} median {np.median(errors):6.1%} p90 {np.quantile(errors, 0.9):6.1%}"


def derived(rows: list[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants that follow from the fitted ones and from papers."""
    narrow = [each for row in rows if (row.family, row.dtype) == ("gemm", "bf16") for each in _of_cast_inputs(row)]
    yield from narrow
    by_key = {(row.gpu, row.family, row.dtype): row for row in rows}
    for row in (*rows, *narrow):
        if row.family == "gemm" and row.dtype != "fp32":
            yield from _grouped(row, by_key)
    for gpu, family, compute, source in ESTIMATES:
        forward = by_key[gpu, "attention", "bf16"]
        # The share is of the whole kernel at long sequences; what the softmax costs is in it.
        yield replace(forward, family=family, compute=compute, edge=1.0, k_fill=64.0, wave=0.5, unhidden=0.1,
                      rows=0, median_error=None, p90_error=None, source=source, confidence="medium")  # fmt: skip
    for row in rows:
        if row.source.endswith(OWN_ATTENTION):
            source = "as on H100, the same chip; its own table is of FlashAttention-3"
            yield replace(_underived(row), gpu="H200-SXM-141GB", source=source, grid_of=row.gpu)
    yield FamilyConstants(
        gpu=ANY,
        family="norm",
        dtype="bf16",
        memory=FUSED_NORM_SHARE,
        source="an estimate: fused norms of apex, Transformer Engine and Triton; those measured here are PyTorch 2.1's",
    )


def _of_cast_inputs(gemm: FamilyConstants) -> Iterator[FamilyConstants]:
    """Yield the GEMMs of 8 and 4 bits that training runs, whose inputs are cast before, by those in bf16.

    The tables of inference have kernels that cast as they go (``kernel=scaled``). Fits to them make of that a slow
    memory, which gradients of weights, with the most bytes, then wait for.
    """
    gpu = load_gpu(gemm.gpu)
    for dtype, gain in GAINS.items():
        if gpu.has_peak(dtype) and (not ELEMENT_TYPES[dtype].small_blocks or gpu.has_peak("nvfp4")):
            peaks = gpu.peak_flops_per_s(dtype) / gpu.peak_flops_per_s("bf16")
            source = f"its gemm bf16 x {gain}: Transformer Engine, docs/examples/gemm_profiling"
            yield replace(
                _underived(gemm), dtype=dtype, compute=gemm.compute * gain / peaks, source=source, grid_of=gemm.gpu
            )


def _grouped(gemm: FamilyConstants, by_key: dict[Key, FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield the grouped GEMMs that nobody timed in a type, as a share of the plain one.

    Where GEMMs of the backward pass were timed in 16 bits, they have rows of their own in other types, too: what is
    found else is the share that 16 bits have of their peak. What their kernels reach of the memory is the same in all.
    """
    source = f"its gemm x {GROUPED_SHARE}: one kernel of PyTorch on an H100 (docs/published-runs.md)"
    for family in GROUPED:
        timed = by_key.get((gemm.gpu, family, "bf16"))
        if (timed or family == GROUPED[0]) and (gemm.gpu, family, gemm.dtype) not in by_key:
            compute, memory = gemm.compute * GROUPED_SHARE, (timed or gemm).memory
            yield replace(_underived(gemm), family=family, compute=compute, memory=memory, source=source, grid_of="")


def _underived(row: FamilyConstants) -> FamilyConstants:
    """Return a row without what says how well it was fitted."""
    return replace(row, rows=0, median_error=None, p90_error=None, confidence="medium")


def eight_bit_attention(rows: list[FamilyConstants]) -> Iterator[FamilyConstants]:
    """Yield constants of training's attention in 8 bits; half of each gain, as their peak is twice that of 16 bits.

    Before them comes the backward pass in 16 bits of the GPU whose own differs from its relatives'.
    """
    by_key = {(row.gpu, row.family, row.dtype): row for row in rows}
    ultra, faster, why = BACKWARD_OF_GB300
    timed = by_key["B200-SXM-180GB", "attention_backward", "bf16"]
    by_key[ultra, "attention_backward", "bf16"] = of_ultra = replace(
        _underived(timed), gpu=ultra, compute=timed.compute * faster, source=why
    )
    yield of_ultra
    for gpu, dtype, forward, backward, source in EIGHT_BIT_ATTENTION:
        chip = gpu if gpu == ultra else "H100-SXM-80GB" if gpu.startswith("H") else "B200-SXM-180GB"
        for name, family, gain in ((gpu, "attention", forward), (chip, "attention_backward", backward)):
            own = f"{family}_cudnn"
            row = by_key.get((name, own, "bf16")) or by_key[name, family, "bf16"]
            grid_of = row.grid_of or (name if row.family == own else "")
            yield replace(_underived(row), gpu=gpu, family=own, dtype=dtype, compute=row.compute * gain / 2,
                          source=source, grid_of=grid_of)  # fmt: skip


def main() -> int:
    """Fit, print and perhaps write; return the exit code."""
    parser = argparse.ArgumentParser(description="fit operator constants to measured kernels")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the measured CSV files")
    parser.add_argument("--write", action="store_true", help="replace the shipped constants and corrections")
    parser.add_argument("--held-out", action="store_true", help="print the errors on a fifth of the shapes left out")
    parser.add_argument("--unseen", action="store_true", help="print the errors on each GPU from the others' constants")
    given = parser.parse_args()
    try:
        for name in FILES:
            table_path(name, given.data)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    rows: list[FamilyConstants] = []
    amd: list[FamilyConstants] = []
    corrections: list[Correction] = []
    every = list(samples(given.data))
    if given.unseen:
        pools: dict[tuple[str, str], dict[str, tuple[Timings, str]]] = {}
        for (gpu, family, dtype), sample, source in every:
            if family in ("gemm", "bmm", "elementwise", "norm", "softmax") and len(sample) >= 40:
                pools.setdefault((family, dtype), {})[gpu] = (sample, source)
        unseen(pools)
        return 0
    for key, sample, source in every:
        if len(sample) < 5:
            continue
        if given.held_out:
            report(key, sample, source)
        constants, correction = fitted(key, sample, source, events=NEUSIGHT in source)
        print(constants)
        if AMD in source:
            # Few rows of each: the constants alone; the medians of all GPUs stay those of NVIDIA's, which have grids.
            amd.append(constants)
            continue
        rows.append(constants)
        corrections += [] if correction is None else [replace(correction, dtype=constants.dtype)]
    rows += list(derived(rows))
    rows += [*defaults(rows), *eight_bit_attention(rows), SCAN, *amd, *of_amd(amd)]
    if given.write:
        folder = Path(traincast.__file__).parent / "data" / "operators"
        (folder / "constants.csv").write_text(write_constants(rows), encoding="utf-8")
        (folder / "corrections.csv.gz").write_bytes(gzip.compress(write_corrections(corrections).encode(), mtime=0))
        print(f"wrote {len(rows)} constants and {len(corrections)} corrections to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
