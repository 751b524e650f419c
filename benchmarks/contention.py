"""Print how long a 1,024-rank training step takes to simulate on a fabric whose links are shared.

    python benchmarks/contention.py

Wall seconds of `traincast.simulate` on GPT 405B (1,024 GPUs) after one warm-up of numba, the best of
three where a run is short: on a 2:1 oversubscribed fat-tree, folded and with all ranks; gradients
reduced at the end, and overlapped with the last backward, where the loop of the simulation turns.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from traincast import api
from traincast.simulation.result import Result

EXAMPLE = Path(__file__).parent.parent / "examples" / "aicb_gpt_405b_1024gpu.txt"
FABRICS = {
    "2:1 fat-tree": 'kind = "fat-tree"\nnodes_per_leaf = 8\noversubscription = 2.0',
    "2:1, hashed": 'kind = "fat-tree"\nnodes_per_leaf = 8\noversubscription = 2.0\nrouting = "ecmp"',
}


def timed(cluster: Path, times: int, options: dict[str, Any]) -> tuple[float, Result]:
    """Return the least wall time of some simulations in seconds, and the result."""
    best, result = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        result = api.simulate(EXAMPLE, cluster=str(cluster), **options)
        best = min(best, time.perf_counter() - start)
    if result is None:
        raise RuntimeError("nothing ran")
    return best, result


def main() -> None:
    """Print all of it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FABRICS.items():
            cluster = Path(folder) / "cluster.toml"
            cluster.write_text(f'base = "h100"\n[fabric]\n{text}\n', encoding="utf-8")
            for overlap in (False, True):
                print(f"{name}, gradients {'overlapped with the last backward' if overlap else 'at the end'}:")
                for unfold in (False, True):
                    options = {"unfold": unfold, "overlap_grad_reduce": overlap}
                    timed(cluster, 1, options)
                    wall_s, result = timed(cluster, 1 if unfold else 3, options)
                    ranks, ops = len(result.ranks), len(result.program or ())
                    print(
                        f"  {ranks:5} ranks, {ops:9,} operations: {wall_s:5.2f} s, step {result.iteration_time_s:.3f} s"
                    )


if __name__ == "__main__":
    main()
