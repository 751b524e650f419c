"""The timeline of a step: every operation in packed columns, as the explorer's page holds them."""

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traincast.errors import ConfigError
from traincast.files import read_bytes
from traincast.serve.words import Value, predicted

if TYPE_CHECKING:
    from traincast.serve.bench import Workbench
    from traincast.simulation.result import Result

STORED = "timeline.json"
"""File of a task that holds the timeline of its step."""


class TimelineRecord(Struct, frozen=True, kw_only=True):
    """A job, or a task that explained a step."""

    job: dict[str, Value] = {}
    task: str = ""


class PackedTimeline(Struct, frozen=True, kw_only=True):
    """A step as the explorer takes it (`traincast.report.explorer.columns`)."""

    header: dict[str, object] = field(default_factory=dict)
    columns: str
    """Deflated, in base64."""


def timeline(asked: TimelineRecord, bench: "Workbench") -> PackedTimeline:
    """Return the operations of a step, and when they run."""
    if not asked.task:
        result = predicted(asked.job, bench)
        return packed(result, result.job.model if result.job is not None else "step")
    path = bench.folder / STORED
    if not path.is_file():
        raise ConfigError("has no operations to show; explain a trace or a workload", "task")
    return msgspec.json.decode(read_bytes(path), type=PackedTimeline)


def packed(result: "Result", name: str) -> PackedTimeline:
    """Return the timeline of a result with its operations."""
    from traincast.report.explorer.columns import packed_run

    found = packed_run(replace(result, advice=()), name)
    return PackedTimeline(header=dict(found.header), columns=found.columns)
