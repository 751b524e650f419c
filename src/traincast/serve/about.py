"""What the form of a page is made of: fields, models, clusters, words of the field, units."""

from typing import TYPE_CHECKING

from msgspec import Struct

from traincast import __version__, api
from traincast.job.fields import FIELDS, Field
from traincast.shipped import shipped_rows

if TYPE_CHECKING:
    from traincast.hardware.cluster import Cluster
    from traincast.model.model import Model
    from traincast.serve.bench import Workbench


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


def about(asked: Nothing, bench: "Workbench") -> About:  # noqa: ARG001
    """Say what a form is made of: fields, models, clusters, words and units."""
    from traincast.hardware.gpu import gpu_names
    from traincast.job.frameworks import framework_names
    from traincast.schedules.schedule import SCHEDULES

    return About(
        version=__version__,
        fields=tuple(_field(each) for each in FIELDS.values() if "job" in each.of),
        models=tuple(map(_model, api.models())),
        clusters=tuple(map(_cluster, api.clusters())),
        gpus=tuple(gpu_names()),
        frameworks=tuple(framework_names()),
        schedules=tuple(SCHEDULES.names()),
        recipes=tuple(each.name for each in api.recipes()),
        glossary=_glossary(),
        units={},
    )


def _glossary() -> dict[str, str]:
    """Return the words of docs/glossary.md with their meanings."""
    return {row["word"]: row["meaning"] for row in shipped_rows("serve/glossary.csv")}


def _field(each: Field) -> FieldAbout:
    from traincast.job.choices import choices_of

    return FieldAbout(
        name=each.name,
        group=each.group,
        section=each.section,
        flag=each.flags[0] if each.flags else "",
        takes=each.takes,
        choices=choices_of(each),
        help=each.help,
        example=each.example.strip('"'),
        usual=each.usual,
        since=each.since,
        least=each.least,
        most=each.most,
        needs=each.needs,
        axis=each.is_axis,
        limited=each.axis == "limited",
    )


def _model(model: "Model") -> ModelAbout:
    from traincast.model.counts import parameters
    from traincast.units import format_count

    counts = parameters(model)
    sparse = counts.active < counts.total
    text = f"{format_count(counts.total)}{f', {format_count(counts.active)} active' if sparse else ''}"
    return ModelAbout(
        name=model.name,
        parameters=counts.total,
        active=counts.active,
        kind="MoE" if sparse else "dense",
        layers=model.layers,
        hidden=model.hidden,
        text=text,
    )


def _cluster(cluster: "Cluster") -> ClusterAbout:
    from traincast.units import format_size

    return ClusterAbout(
        name=cluster.name,
        description=cluster.description,
        gpu=cluster.gpu.name,
        gpus_per_node=cluster.gpus_per_node,
        memory="" if cluster.gpu.hbm_bytes is None else format_size(cluster.gpu.hbm_bytes),
    )
