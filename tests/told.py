"""An emitter that tells what lowering asks of it, so that tests count bytes, times and order by hand."""

# ruff: noqa: ARG002 - what lowering says of a row is more than tests look at

import numpy as np

from traincast.job.share import rank_share
from traincast.lowering.emit import Emitter
from traincast.lowering.work import call_of
from traincast.model.numbers import anywhere
from traincast.workload.words import CostClass


class Told(Emitter):
    """Rows are tuples: what is done, and how much of it; what is 0 everywhere is not told."""

    def __init__(self, job, ranks_per_node=8):
        self.job, self.share = job, rank_share(job, ranks_per_node)

    def compute(self, name, phase, work):
        return [("compute", name, sum(work.calls.values()))] if work.calls else []

    def runs(self, name, phase, runs):
        counts = [count for what, count in runs if min(call_of(what).shape) > 0]
        return [("runs", name, sum(counts))] if counts else []

    def gap(self, name, duration_s, cost_class, phase=None):
        return [("gap", name, duration_s)] if anywhere(duration_s) else []

    def launched(self, duration_s, phase):
        return [("launched", duration_s)]

    def copy(self, name, phase, stream, size_bytes, *, blocking=False):
        return [(name, size_bytes, "blocks" if blocking else "launched")] if anywhere(size_bytes) else []

    def outside(self, name, duration_s, *, blocking=True):
        return [(name, duration_s, "blocks" if blocking else "launched")] if anywhere(duration_s) else []

    def exchange(self, each, phase=None, count=1.0, *, blocking=True, cost_class=CostClass.NONE):
        if not anywhere(each.size_bytes * count):
            return []
        how = "unhidden" if cost_class is CostClass.UNHIDDEN else "blocks" if blocking else "launched"
        return [(f"{each.group.name} {each.operation.name}", each.size_bytes * count, how)]

    def wait(self, *streams, where=True):
        return [("wait", stream.name) for stream in streams] if np.any(where) else []

    def overlapped(self, launched, hiding):
        return [*launched, *hiding, ("joined",)] if launched else hiding

    def again(self, key, write):
        return write()
