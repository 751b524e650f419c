"""The timeline of a step: every operation in packed columns, as the explorer's page holds them."""

import msgspec
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.files import read_bytes
from traincast.report.explorer.columns import packed_run
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.words import predicted
from traincast.serve.records.forecasts import PackedTimeline, TimelineRecord
from traincast.simulation.result import Result

STORED = "timeline.json"
"""File of a task that holds the timeline of its step."""


def timeline(asked: TimelineRecord, bench: Workbench) -> PackedTimeline:
    """Return the operations of a step, and when they run."""
    if not asked.task:
        result = predicted(asked.job, bench)
        return packed(result, result.job.model if result.job is not None else "step")
    path = bench.folder / STORED
    if not path.is_file():
        raise ConfigError("has no operations to show; explain a trace or a workload", "task")
    return msgspec.json.decode(read_bytes(path), type=PackedTimeline)


def packed(result: Result, name: str) -> PackedTimeline:
    """Return the timeline of a result with its operations."""
    found = packed_run(replace(result, advice=()), name)
    return PackedTimeline(header=dict(found.header), columns=found.columns)
