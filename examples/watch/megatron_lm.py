"""Write Megatron-LM's steps as JSON lines: import this in the training script, call `install` before `pretrain`.

Wraps `training_log` of megatron/training/training.py (core_v0.8.0 to v0.15.0), which is called after each iteration.
"""

import functools
import inspect
import json
import os
import time


def install(path, training=None):
    """Append {"step", "step_s"} for each iteration to a file, from the last rank, which logs."""
    if training is None:
        from megatron.training import training
    if int(os.environ.get("RANK", "0")) != int(os.environ.get("WORLD_SIZE", "1")) - 1:
        return
    log = training.training_log
    signature, before = inspect.signature(log), [None]

    @functools.wraps(log)
    def training_log(*args, **kwargs):
        step = signature.bind(*args, **kwargs).arguments["iteration"]
        now = time.perf_counter()
        if before[0] is not None:
            with open(path, "a") as file:
                file.write(json.dumps({"step": step, "step_s": now - before[0]}) + "\n")
        result = log(*args, **kwargs)
        before[0] = now
        return result

    training.training_log = training_log
