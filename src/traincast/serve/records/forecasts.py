"""A job and its forecast; the same as a timeline and as a file."""

from msgspec import Struct, field

from traincast.serve.records.values import Shown, Value


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job, by the names of its fields as ``/api/about`` lists them."""

    job: dict[str, Value]
    """Field to its value as typed on the command line, such as ``{"model": "llama3-70b", "seq_length": "8k"}``."""


class PartShown(Struct, frozen=True, kw_only=True):
    """A part of the step."""

    name: str
    """Its key in ``breakdown_s``."""
    label: str
    seconds: float
    share: float
    text: str
    """Its time; `share_text` is its share of the step."""
    share_text: str


class MemoryShown(Struct, frozen=True, kw_only=True):
    """Memory of a pipeline stage, in bytes."""

    stage: int
    parts: dict[str, float]
    peak: Shown
    limit: Shown | None
    chance_of_oom: Shown | None


class ForecastShown(Struct, frozen=True, kw_only=True):
    """A forecast as the terminal report says it."""

    headline: str
    step: Shown
    low: Shown | None = None
    high: Shown | None = None
    """Of the 90 % interval."""
    tokens_per_s: Shown | None = None
    mfu: Shown | None = None
    tflops: Shown | None = None
    facts: tuple[tuple[str, str], ...] = ()
    """Model, layout, memory, interval, rates, whole run: what each line is of, and what it says."""
    run: tuple[tuple[str, str, str], ...] = ()
    """Of a whole run, where its tokens are said: what it takes, how much, and what that counts on, a line each."""
    breakdown: tuple[PartShown, ...] = ()
    memory: tuple[MemoryShown, ...] = ()


class NoteShown(Struct, frozen=True, kw_only=True):
    """An assumption or a warning."""

    code: str
    text: str
    place: str | None = None
    field: str | None = None
    """Field of the job that would replace it."""
    minor: bool = False
    """Whether it hardly moves the step."""


class ForecastAnswer(Struct, frozen=True, kw_only=True):
    """A forecast."""

    result: dict[str, object] = field(default_factory=dict)
    """The document ``traincast.result/1``, without advice and analysis."""
    shown: ForecastShown
    assumptions: tuple[NoteShown, ...]
    warnings: tuple[NoteShown, ...]
    command: str
    """The command line that prints the same."""
    seconds: float
    """How long it took."""


class TimelineRecord(Struct, frozen=True, kw_only=True):
    """A job, or a task that explained a step."""

    job: dict[str, Value] = {}
    task: str = ""


class PackedTimeline(Struct, frozen=True, kw_only=True):
    """A step as the explorer takes it (`traincast.report.explorer.columns`)."""

    header: dict[str, object] = field(default_factory=dict)
    columns: str
    """Deflated, in base64."""


class ExportRecord(Struct, frozen=True, kw_only=True):
    """A job, and what to make of it."""

    job: dict[str, Value]
    form: str = field(name="as")
    """``job.toml``, ``command``, ``python``, ``result.json``, ``csv``, ``svg``, ``svg-dark``, ``megatron``, ``bridge``,
    or ``torchtitan``."""


class Exported(Struct, frozen=True, kw_only=True):
    """A file."""

    name: str
    text: str
