"""Write torchtitan's steps as JSON lines: call `install(trainer.metrics_processor, path)` before `trainer.train()`.

Takes the place of the logger of torchtitan/components/metrics.py (v0.2), and hands on to it all that it gets.
"""

import json


class JsonLines:
    """A logger as torchtitan's `BaseLogger`: `log(metrics, step)` and `close()`."""

    def __init__(self, path, logger):
        self.file, self.logger = open(path, "a", buffering=1), logger

    def log(self, metrics, step):
        """Write the mean time of the steps since the last call, and the memory."""
        line = {"step": step, "step_s": metrics["time_metrics/end_to_end(s)"]}
        if "memory/max_reserved(GiB)" in metrics:
            line["memory_gib"] = metrics["memory/max_reserved(GiB)"]
        self.file.write(json.dumps(line) + "\n")
        self.logger.log(metrics, step)

    def close(self):
        """Close the file, and the logger behind it."""
        self.file.close()
        self.logger.close()


def install(metrics_processor, path, rank=0):
    """Write lines from one rank; others keep their logger."""
    if rank == 0:
        metrics_processor.logger = JsonLines(path, metrics_processor.logger)
