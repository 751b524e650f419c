"""Write the steps of Hugging Face's Trainer as JSON lines: `Trainer(..., callbacks=[StepTimes(path)])`."""

import json
import time

from transformers import TrainerCallback


class StepTimes(TrainerCallback):
    """Writes {"step", "step_s"} for each optimizer step; evaluations and checkpoints are in no step's time."""

    def __init__(self, path):
        self.path, self.file, self.before, self.step = path, None, None, 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Open the file on the first process."""
        if state.is_world_process_zero:
            self.file = open(self.path, "a", buffering=1)

    def on_step_end(self, args, state, control, **kwargs):
        """Write the time since the last step ended."""
        now = time.perf_counter()
        if self.file is not None and self.before is not None and state.global_step == self.step + 1:
            self.file.write(json.dumps({"step": state.global_step, "step_s": now - self.before}) + "\n")
        self.before, self.step = now, state.global_step

    def _elsewhere(self, args, state, control, **kwargs):
        """Begin the next step now: what was done before is none."""
        self.before = time.perf_counter()

    on_evaluate = on_save = on_epoch_begin = _elsewhere

    def on_train_end(self, args, state, control, **kwargs):
        """Close the file."""
        if self.file is not None:
            self.file.close()
