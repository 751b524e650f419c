"""What the form of a page is made of: fields, models, clusters, words of the field, units."""

from traincast import __version__, api
from traincast.hardware.cluster import Cluster
from traincast.hardware.gpu import gpu_names
from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS, Field
from traincast.job.frameworks import framework_names
from traincast.model.counts import parameters
from traincast.model.model import Model
from traincast.schedules.schedule import SCHEDULES
from traincast.serve.answers.bench import Workbench
from traincast.serve.records.forms import About, ClusterAbout, FieldAbout, ModelAbout, Nothing
from traincast.shipped import shipped_rows
from traincast.units import format_count, format_size


def about(asked: Nothing, bench: Workbench) -> About:  # noqa: ARG001
    """Say what a form is made of: fields, models, clusters, words and units."""
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


def _model(model: Model) -> ModelAbout:

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


def _cluster(cluster: Cluster) -> ClusterAbout:

    return ClusterAbout(
        name=cluster.name,
        description=cluster.description,
        gpu=cluster.gpu.name,
        gpus_per_node=cluster.gpus_per_node,
        memory="" if cluster.gpu.hbm_bytes is None else format_size(cluster.gpu.hbm_bytes),
    )
