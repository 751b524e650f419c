"""Hold whole models that PyTorch ran eagerly in fp32 against the costs of their kernels.

    python studies/eager_models.py [--data DIR] [--by A,B] [--cv gpu]

DIR holds `neusight_e2e_labels.csv` (`studies/data` by default): what NeuSight (arXiv 2407.13853) measured
on 11 GPUs. Its models are written out kernel by kernel in `eager/`, because the file says only their names.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from datafiles import DATA, table_path
from eager.predict import KIND
from traincast.calibration.validate import validate
from traincast.errors import TraincastError
from traincast.report.terminal.accuracy import print_validation


def main() -> int:
    """Predict every label and print the errors; return the exit code."""
    parser = argparse.ArgumentParser(description="hold eager fp32 models against the costs of their kernels")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with neusight_e2e_labels.csv")
    parser.add_argument("--by", default="", metavar="A,B", help=f"groups to show: {', '.join(KIND.by)}")
    parser.add_argument("--cv", choices=KIND.leaves_out, help="also predict each group by what the others tell")
    given = parser.parse_args()
    by = [name.strip() for name in given.by.split(",") if name.strip()]
    try:
        path = table_path("neusight_e2e_labels.csv", given.data)
        print_validation(Console(), validate(path, by=by, leave_out=given.cv, kind=KIND))
    except (FileNotFoundError, TraincastError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
