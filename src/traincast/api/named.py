"""What a user names: clusters, models, and jobs that are described in a file."""

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from traincast.dialects import LIKES, draft_like
from traincast.errors import ConfigError, FormatError, UnknownNameError
from traincast.formats.recognise import known_as
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_names, load_cluster
from traincast.hardware.gpu import gpu_names
from traincast.job.draft import Draft
from traincast.job.job import Job
from traincast.job.job_file import read_job_file
from traincast.job.recipes import PublishedRecipe, find_recipe, search_recipes
from traincast.job.request import JobRequest
from traincast.model.load import load_model, model_names
from traincast.model.model import Model
from traincast.names import names_with

T = TypeVar("T")
StrPath = str | PathLike[str]


def clusters(names: str | Sequence[str] = ()) -> list[Cluster]:
    """Return clusters by their names, presets or TOML files; every preset where none is given.

    A string is one name.

    Examples
    --------
    >>> import traincast
    >>> (h100,) = traincast.clusters(["h100"])
    >>> h100.gpu.name, h100.gpus_per_node
    ('H100-SXM-80GB', 8)
    >>> len(traincast.clusters()) > 10
    True
    """
    return list(map(load_cluster, _several(names) or cluster_names()))


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def models(names: str | Sequence[str] = ()) -> list[Model]:
    """Return models by their names; every built-in model where none is given.

    A name is that of a built-in model, of a ``config.json`` of Hugging Face or a directory with one, or of a TOML file.

    Examples
    --------
    >>> import traincast
    >>> (model,) = traincast.models(["llama3-70b"])
    >>> model.layers, model.hidden
    (80, 8192)
    """
    return list(map(load_model, _several(names) or model_names()))


def recipes(words: str | Sequence[str] = ()) -> list[PublishedRecipe]:
    """Return published recipes whose names or releases have all of some words in them; every one where none is given.

    Examples
    --------
    >>> import traincast
    >>> newest, *older = traincast.recipes("deepseek_v3_pretrain_256gpu_gb200_fp8mx")
    >>> newest.fields["moe_dispatcher"], len(older) > 4
    ('hybridep', True)
    """
    return list(search_recipes(tuple(_several(words))))


def search_clusters(words: Sequence[str]) -> tuple[list[Cluster], bool]:
    """Return the clusters that are named; for a word that names none those that have it in their name or their GPU's.

    The second value says whether every word was a name.

    Examples
    --------
    >>> found, exact = search_clusters(["gb300"])
    >>> [each.name for each in found], exact
    (['gb300'], True)
    """
    found, exact = _searched(words, load_cluster, [*cluster_names(), *gpu_names()])
    return list({each.name: each for each in found}.values()), exact


def search_models(words: Sequence[str]) -> tuple[list[Model], bool]:
    """Return the models that are named; for a word that names none those that have it in their name.

    The second value says whether every word was a name.

    Examples
    --------
    >>> found, exact = search_models(["mixtral"])
    >>> [each.name for each in found], exact
    (['mixtral-8x7b', 'mixtral-8x22b'], False)
    """
    return _searched(words, load_model, model_names())


def _searched(words: Sequence[str], load: Callable[[str], T], known: Sequence[str]) -> tuple[list[T], bool]:
    found: dict[str, T] = {}
    exact = True
    for word in words:
        try:
            found[word] = load(word)
        except UnknownNameError:
            hits = names_with(word, known)
            if not hits:
                raise
            exact = False
            found |= {each: load(each) for each in hits}
    return list(found.values()), exact


def described(path: StrPath) -> Draft:
    """Read a job file, another framework's script or configuration file, or the arguments in a training log.

    Raises
    ------
    FormatError
        If it can be read as none of them.

    Examples
    --------
    >>> from traincast import api
    >>> job = api.described("examples/llama3_70b_512gpu.toml")
    >>> job.model, job.fields["gpus"], job.fields["tp"]
    ('llama3-70b', 512, 8)
    """
    # A job of keywords alone loads none of what reads files of others.
    from traincast.dialects.recognise import draft_of_file
    from traincast.report.sides import job_of_log

    found = draft_of_file(Path(path))
    if found is not None:
        return found
    if Path(path).suffix != ".toml":
        draft = job_of_log(Path(path))
        if draft is not None:
            return draft
    try:
        return read_job_file(fspath(path))
    except FormatError:
        if Path(path).suffix == ".toml" or not Path(path).is_file():
            raise
        from traincast.calibration.kind import TELLERS

        file = known_as(Path(path), TELLERS)
        if file is not None:
            raise FormatError(
                f"describes no job: it is a file of kind {file.name} ({file.what}); {file.taken_by}", fspath(path)
            ) from None
        known = ", ".join(LIKES)
        text = f"is neither a job file nor a script or settings that tell whose they are; give like=... ({known})"
        raise FormatError(text, fspath(path)).typed(like="--like") from None


def draft_of(job: StrPath | Draft | None) -> Draft | None:
    """Return the job that a path describes; a job as it is."""
    return described(job) if isinstance(job, (str, PathLike)) else job


def job_under(
    job: Job | JobRequest | Draft | StrPath | None,
    said: Draft,
    like: str | None = None,
    *,
    strict: bool = False,
    recipe: str | None = None,
) -> Draft | JobRequest | Job:
    """Return a job with everything that keywords say instead; with `like` it is the pasted flags of that framework.

    With `strict` pasted flags that are unknown, and GPUs that are not what their launcher starts, are refused. A
    `recipe` says what neither says.

    Raises
    ------
    ConfigError
        If there is nothing left to say of the job, because it was decided.
    TraincastError
        If it cannot be read.
    """
    if recipe is not None:
        under = job_under(job, said, like, strict=strict)
        if not isinstance(under, Draft):
            raise ConfigError("says what a job leaves open; give it with keywords, a draft or a file", "recipe")
        return find_recipe(recipe).draft(under)
    if like is not None:
        if not isinstance(job, str):
            raise ConfigError("applies to pasted flags; give their text as the job", "like")
        draft = draft_like(like, [job], strict=strict).under(said)
        wrong = [note.text for note in draft.warnings if note.code == "gpus-of-launcher"] if strict else []
        if wrong:
            raise ConfigError(f"{wrong[0]}; give one of them, or leave out strict", "gpus")
        return draft
    found = described(job) if isinstance(job, (str, PathLike)) else job
    if found is None or isinstance(found, Draft):
        return (found or Draft()).under(said)
    changes = dict(said.fields)
    if said.model is not None:
        changes["model"] = load_model(said.model) if isinstance(said.model, str) else said.model
    if changes and isinstance(found, Job):
        raise ConfigError(
            "cannot be said of a Job, which is decided; change what it was made from", next(iter(changes))
        )
    return replace(found, **changes) if changes else found
