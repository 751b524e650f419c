"""What a form is made of, what there is to try, and texts that are read as a job."""

from msgspec import Struct

from traincast.serve.records.forecasts import NoteShown
from traincast.serve.records.values import Value


class Nothing(Struct, frozen=True):
    """What an endpoint takes that needs to know nothing."""


class FieldAbout(Struct, frozen=True, kw_only=True):
    """A field of a job, as the form shows it."""

    name: str
    group: str
    section: str
    flag: str
    takes: str
    """``text``, ``count``, ``counts``, ``tokens``, ``number``, ``switch``, ``choice`` or ``names``."""
    choices: tuple[str, ...] = ()
    help: str
    example: str = ""
    usual: str = ""
    since: str = ""
    least: float | None = None
    most: float | None = None
    needs: tuple[str, ...] = ()
    axis: bool = False
    """Whether a plan decides it."""
    limited: bool = False
    """Whether a plan takes an upper limit of it, ``max_NAME``."""


class ModelAbout(Struct, frozen=True, kw_only=True):
    """A model that is known."""

    name: str
    parameters: float
    active: float
    """Of a token."""
    kind: str
    """``dense``, ``MoE`` or ``hybrid``."""
    layers: int
    hidden: int
    text: str
    """Parameters for people: ``70.6B``, ``671B, 37.6B active``."""


class ClusterAbout(Struct, frozen=True, kw_only=True):
    """A cluster that is known, or the GPU of one."""

    name: str
    description: str
    gpu: str
    gpus_per_node: int
    memory: str


class About(Struct, frozen=True, kw_only=True):
    """All that a form is made of."""

    version: str
    fields: tuple[FieldAbout, ...]
    models: tuple[ModelAbout, ...]
    clusters: tuple[ClusterAbout, ...]
    gpus: tuple[str, ...]
    """Further names that a cluster may have: GPUs by their datasheets."""
    frameworks: tuple[str, ...]
    schedules: tuple[str, ...]
    recipes: tuple[str, ...]
    glossary: dict[str, str]
    units: dict[str, str]


class Example(Struct, frozen=True, kw_only=True):
    """Something to try."""

    name: str
    title: str
    text: str
    """What it is."""
    view: str
    """``forecast``, ``plan``, or ``explain``."""
    job: dict[str, Value] = {}
    plan: dict[str, Value] = {}


class Examples(Struct, frozen=True, kw_only=True):
    """What there is to try."""

    examples: tuple[Example, ...]


class TextRecord(Struct, frozen=True, kw_only=True):
    """A text that somebody pasted, or a file."""

    text: str
    name: str = ""
    """Name of the file, if it has one."""
    like: str = ""
    """Whose words they are, where that is not plain: ``megatron``, ``torchtitan`` and others."""


class Misunderstood(Struct, frozen=True, kw_only=True):
    """A part of a text that is not in the job."""

    text: str
    why: str


class PastedJob(Struct, frozen=True, kw_only=True):
    """A text as a job."""

    job: dict[str, Value]
    what: str
    """What it was taken as."""
    not_understood: tuple[Misunderstood, ...] = ()
    assumptions: tuple[NoteShown, ...] = ()
    warnings: tuple[NoteShown, ...] = ()
    missing: str = ""
    """Field that a job needs and that is not in it."""
