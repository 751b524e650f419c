r"""Compile steps for TPUs that are not there, and write how much memory each program plans.

    pip install "jax[tpu]"; python studies/xla_programs.py IN OUT

IN and OUT are tables as ``studies/data/xla_programs.csv.gz``: a row a program (`machine.compiled`), whose
``hbm_bytes`` are filled in. libtpu's compiler needs no chip, and plans all buffers before it writes machine code: a
process of its own compiles each program, and is ended when it has said what the buffers take.
"""

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

REPORT = "**/*jit_*memory-usage-report.txt"
LIMIT_S, PAUSE_S = 600, 0.5
LOCK = Path(gettempdir(), "libtpu_lockfile")
"""libtpu's, which a process that was ended leaves behind."""
NO_CHIP = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_HOST_BOUNDS": "1,1,1",
}
"""What libtpu otherwise asks a server about the machine that it is on."""


def planned_bytes(row: Mapping[str, str]) -> int:
    """Return the bytes of a chip's memory that the program of a row plans; `RuntimeError` where it does not compile."""
    with TemporaryDirectory() as folder:
        LOCK.unlink(missing_ok=True)
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        command = [sys.executable, "-m", "machine.compiled", json.dumps(dict(row))]
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            env={**os.environ, **NO_CHIP, "XLA_FLAGS": flags},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        try:
            found = _reported(Path(folder), process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[1]
    if found is None:
        raise RuntimeError(f"{row['id']} did not compile: {said[-2000:]}")
    return found


def _reported(folder: Path, process: "subprocess.Popen[str]") -> int | None:
    """Return what the report of a program says, when it is there; None where the process ends without one.

    A program that is larger than the chip's memory is refused after its report.
    """
    end, running = time.monotonic() + LIMIT_S, True
    while running and time.monotonic() < end:
        running = process.poll() is None
        for report in folder.glob(REPORT):
            said = re.search(r"Total bytes: (\d+)", report.read_text(encoding="utf-8"))
            if said:
                return int(said[1])
        time.sleep(PAUSE_S)
    return None


def main() -> None:
    """Fill in a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    with given.source.open(encoding="utf-8", newline="") as stream:
        rows = [*csv.DictReader(stream)]
    for row in rows:
        row["hbm_bytes"] = str(planned_bytes(row))
        print(row["id"], row["hbm_bytes"], flush=True)
    with given.target.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
