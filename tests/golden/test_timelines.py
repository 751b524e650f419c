"""Timelines that must not change by themselves: every operation of small pipelines, to the last digit.

A change that is meant is written down with ``python tests/golden/test_timelines.py`` and read in the diff.
"""

import io
import sys
from pathlib import Path

import pytest

from traincast import api
from traincast.report.csv import write_csv

HERE = Path(__file__).parent
WORKLOAD = HERE / "pipeline.txt"
CASES = {
    "1f1b": {"pp": 3, "microbatches": 4},
    "gpipe": {"pp": 3, "microbatches": 4, "schedule": "gpipe"},
    "interleaved": {"pp": 2, "vpp": 2, "microbatches": 3},
    "overlapped_gradients": {"pp": 2, "microbatches": 2, "overlap_grad_reduce": True},
}


def timeline(case: str) -> str:
    """Simulate a case on round numbers: every transfer takes its size over 1 GB/s, and nothing else."""
    rates = dict.fromkeys(("tp", "dp", "pp", "emb"), 1e9)
    result = api.simulate(WORKLOAD, cluster="ideal", gpus=12, busbw_bytes_per_s=rates, **CASES[case])
    stream = io.BytesIO()
    write_csv(result, stream)
    return stream.getvalue().decode().replace(str(WORKLOAD), WORKLOAD.name)


@pytest.mark.parametrize("case", CASES)
def test_the_timeline_is_the_one_on_record(case):
    assert timeline(case).splitlines() == (HERE / f"{case}.csv").read_text().splitlines()


if __name__ == "__main__":
    for name in CASES:
        (HERE / f"{name}.csv").write_text(timeline(name))
    sys.stdout.write(f"wrote {len(CASES)} timelines\n")
