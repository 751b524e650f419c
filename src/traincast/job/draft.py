"""A job as it is gathered: from a file, from pasted flags, from options; the later ones win."""

from collections.abc import Callable, Mapping
from os import PathLike
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.files import InputFile
from traincast.hardware.cluster import Cluster
from traincast.job.flags import flag_of
from traincast.job.request import REQUIRED, JobRequest
from traincast.model.load import load_model
from traincast.model.model import Model

Finish = Callable[[Mapping[str, Any], Model | None], Mapping[str, Any]]
"""Returns fields that follow from those that were given, and from the model where it is known."""


class Setting(Struct, frozen=True):
    """What became of one setting of another framework: exactly one of five things."""

    name: str
    """As the framework spells it."""
    value: str
    """Its values, joined by blanks; empty for a switch."""
    effect: str
    """``read``, ``no_effect``, ``small_effect``, ``not_modelled`` or ``unknown``."""
    why: str = ""
    """Why it has no effect, or what is forecast instead."""
    matters: str = ""
    """How much it may matter that it is not modelled, and by what."""


class Draft(Struct, frozen=True, kw_only=True):
    """What is said of a job so far.

    Examples
    --------
    >>> import traincast
    >>> draft = traincast.Draft(model="llama3-8b", fields={"gpus": 8, "global_batch": 64})
    >>> draft.missing()
    'seq_length'
    >>> draft.under(traincast.Draft(fields={"seq_length": 8192})).request().gpus
    8
    """

    model: Model | str | None = None
    """A model, or the name or path of one."""
    cluster: str | PathLike[str] | Cluster | None = None
    """A cluster, or the name or path of one."""
    cluster_assumed: bool = False
    """Whether nobody named the cluster."""
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of `JobRequest` that were given."""
    notes: tuple[Note, ...] = ()
    """What reading it brought up."""
    warnings: tuple[Note, ...] = ()
    """What of it is not modelled or looks wrong."""
    settings: tuple[Setting, ...] = ()
    """What became of each setting of a framework's command line and files."""
    finish: Finish | None = None
    """Defaults of a framework that need the number of GPUs or the model, which may be given elsewhere."""
    launched: int | None = None
    """Ranks that a pasted launch line starts."""
    whys: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    """Field to what says it, or why nothing does; None where there is nothing to say."""
    inputs: tuple[InputFile, ...] = ()
    """The files that say it."""
    convert: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    """Options of the writers of formats, by their name (``traincast convert``)."""

    def under(self, over: "Draft") -> "Draft":
        """Return this draft with everything that another one says instead, less the assumptions that it settles."""
        settled = {f"assumed-{name.replace('_', '-')}" for name in over.fields}
        return replace(
            self,
            model=self.model if over.model is None else over.model,
            cluster=self.cluster if over.cluster is None else over.cluster,
            cluster_assumed=self.cluster_assumed and over.cluster is None,
            inputs=(*self.inputs, *over.inputs),
            fields={**self.fields, **over.fields},
            notes=(*(note for note in self.notes if note.code not in settled), *over.notes),
            warnings=(*self.warnings, *self._contradictions(over), *over.warnings),
            settings=(*self.settings, *over.settings),
            finish=over.finish or self.finish,
            convert={**self.convert, **over.convert},
        )

    def _contradictions(self, over: "Draft") -> tuple[Note, ...]:
        """Return a warning where the GPUs that are given are not the ranks that the launcher starts."""
        gpus = over.fields.get("gpus")
        if self.launched is None or gpus in (None, self.launched):
            return ()
        text = f"--gpus {gpus} is taken, but the launcher starts {self.launched} ranks ({self.whys['gpus']})"
        return (Note("gpus-of-launcher", text),)

    def lacks(self, missing: str) -> ConfigError:
        """Return the error of a field that is missing, with what to do about it."""
        why = self.whys.get(missing)
        text = f"is missing{f' ({why})' if why else ''}; give {missing}=..., or set it in the job file"
        return ConfigError(text, missing).typed(**{missing: flag_of(missing)})

    def loaded_model(self) -> Model | None:
        """Return the model; None where none is given.

        Raises
        ------
        FormatError, UnknownNameError
            If it cannot be read or is not known.
        """
        return load_model(self.model) if isinstance(self.model, str) else self.model

    def missing(self) -> str | None:
        """Return the first field that a job must have and that was not given and does not follow, or None."""
        fields = {**self.finished(), "model": self.model}
        return next((name for name in REQUIRED if fields.get(name) is None), None)

    def finished(self, model: Model | None = None) -> dict[str, Any]:
        """Return the fields with those that follow from the GPUs and the model."""
        fields = dict(self.fields)
        if self.finish is not None and fields.get("gpus") is not None:
            fields = {**self.finish(fields, model), **fields}
        return fields

    def request(self) -> JobRequest:
        """Return the job.

        Raises
        ------
        ConfigError
            If the model, the GPUs, the sequence length or the global batch is missing.
        FormatError, UnknownNameError
            If the model cannot be read or is not known.
        InfeasibleError
            If degrees of a framework do not fit the GPUs.
        """
        model = self.loaded_model()
        missing = self.missing()
        if missing is not None or model is None:
            raise self.lacks(missing or "model")
        return JobRequest(model=model, **self.finished(model))
