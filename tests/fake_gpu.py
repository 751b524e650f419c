"""A GPU that keeps its own clock: every launch takes the time that a test gives it, and nothing else does."""

from traincast.measuring.timing import CannotTimeError, Task


class FakeGpu:
    """A `Backend` whose operators take the seconds of a table, or raise what stands in it."""

    writes = True

    def __init__(self, seconds, name="Fake 1"):
        self.seconds, self.name = seconds, name
        self.now_s = 0.0
        self.prepared, self.launches, self.alive = [], [], 0

    def clock(self):
        return self.now_s

    def about(self):
        return {"gpu": self.name, "sm_clock_mhz": str(1000 + len(self.prepared))}

    def prepare(self, cells):
        self.prepared.append(cells["name"])
        self.alive += 1
        found = self.seconds[cells["name"]]
        if isinstance(found, str):
            raise CannotTimeError(found)
        return iter(found) if isinstance(found, list) else found

    def times_s(self, launch, repeats):
        times = [launch if isinstance(launch, float) else next(launch) for _ in range(repeats)]
        self.launches.append(repeats)
        self.now_s += sum(times)
        return times

    def host_s(self, _):
        return 5e-6

    def release(self):
        self.alive -= 1

    def agreed(self, value):
        return value


def tasks(**shares):
    """Return a task for each name, with its share."""
    return [Task({"name": name}, count=2, share=share) for name, share in shares.items()]
