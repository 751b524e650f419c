"""What programs can ask: the commands, with typed arguments, whose answers are the JSON of ``--json``.

A program runs as the person who started it, on that person's machine, and reads what that person can read: files are
named by their paths here, which a request of a page never can.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from traincast import api, report
from traincast.errors import ConfigError, UnknownNameError
from traincast.job.choices import choices_of
from traincast.job.fields import FIELDS, LAYOUT, Field, fields
from traincast.job.fields import JOB as JOB_FIELD
from traincast.serve.answers.forecasts import forecast_shown
from traincast.serve.answers.words import said, typed
from traincast.serve.records.values import Value
from traincast.simulation.result import Result

Schema = dict[str, Any]

_TYPES: Mapping[str, Schema] = {
    "count": {"type": ["integer", "string"]},
    "tokens": {"type": ["integer", "string"]},
    "number": {"type": ["number", "string"]},
    "switch": {"type": "boolean"},
    "counts": {"type": ["array", "string"], "items": {"type": "integer"}},
    "names": {"type": "string"},
    "text": {"type": "string"},
    "choice": {"type": "string"},
}
"""Types of JSON of what a field takes; a number may be a text as it is typed (``8k``)."""
_AS_GIVEN = ("model", "cluster", "framework", "constants", "recipe")
"""Names, or paths of files."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a tool answers."""

    headline: str
    """For people, a few lines."""
    document: Mapping[str, Any]
    """What the command prints with ``--json``."""


class Tool(Struct, frozen=True, kw_only=True):
    """Something that a program can ask."""

    name: str
    title: str
    text: str
    run: Callable[[dict[str, Any]], Answer]
    arguments: Mapping[str, Schema]
    """What it takes, by name."""
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """JSON Schema of what it takes."""
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }

    def answer(self, arguments: Mapping[str, Any]) -> Answer:
        """Do what is asked.

        Raises
        ------
        TraincastError
            If an argument is not known, or what it says is wrong or cannot run.
        """
        for name in arguments:
            if name not in self.arguments:
                raise UnknownNameError("argument", name, [*self.arguments])
        missing = next((name for name in self.required if not arguments.get(name)), None)
        if missing is not None:
            raise ConfigError("is missing; give it", missing)
        return self.run(dict(said(arguments)))


def _text(what: str) -> Schema:
    return {"type": "string", "description": what}


def _texts(what: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": what}


def _schema(field: Field, text: str = "") -> Schema:
    """Return the type of a field with its help."""
    found: Schema = {**_TYPES[field.takes], "description": text or field.help}
    choices = choices_of(field)
    if field.takes == "choice" and choices:
        found["enum"] = list(choices)
    if field.takes in ("count", "number") and field.least is not None:
        found["minimum"] = field.least
    return found


_JOB: Mapping[str, Schema] = {
    "job": _text("Path of a job file, a script or settings of a framework, or a result.json; arguments win over it."),
    "recipe": _text("Name of a published recipe to begin with (traincast recipes lists them)."),
    "cluster": _text("Preset, GPU, or path of a TOML file, such as h100 (traincast clusters lists them)."),
    **{each.name: _schema(each) for each in fields(of=JOB_FIELD)},
}
_RUN: Mapping[str, Schema] = {
    "tokens": _text("Tokens of the whole run, such as 15T; adds its days, cost and energy."),
    "gpu_hour_price": {"type": "number", "description": "What a GPU costs for an hour."},
    "failures": _text("Failures of the run, such as mtbf=50000h,checkpoint=30s; default: published ones."),
}
_WHAT_IF = _texts("Changes to try, such as tp_comm*0.5, straggler=none or rank7.compute=peers.")


def _words(asked: Mapping[str, Value]) -> dict[str, Any]:
    """Return arguments as functions of `traincast.api` take them."""
    return {name: each if name in _AS_GIVEN else typed(name, each) for name, each in asked.items()}


def _step(result: Result) -> Answer:
    shown = forecast_shown(result)
    facts = [f"{name}: {text}" for name, text in shown.facts]
    return Answer(headline="\n".join([shown.headline, *facts]), document=report.result_to_dict(result))


def _predict(asked: dict[str, Any]) -> Answer:
    job = asked.pop("job", None)
    return _step(api.predict(job, engine="auto", suggest=True, **_words(asked)))


def _plan(asked: dict[str, Any]) -> Answer:
    several: dict[str, Any] = {name: asked.pop(name) for name in ("models", "clusters") if name in asked}
    if isinstance(asked.get("gpus"), list):
        several["gpus"] = asked.pop("gpus")
    job, fix, explain = (asked.pop(name, None) for name in ("job", "fix", "explain"))
    words = _words(asked)
    if fix:
        words["fix"] = {name: tuple(each) if isinstance(each, list) else (each,) for name, each in fix.items()}
    if explain:
        words["explain"] = explain
    found = api.plans(job, engine="auto", **several, **words) if several else api.plan(job, engine="auto", **words)
    return Answer(headline="\n".join(report.brief_lines(found)), document=report.plan_to_dict(found))


def _explain(asked: dict[str, Any]) -> Answer:
    files = asked.pop("files")
    return _step(api.simulate(files, engine="auto", suggest=True, **_words(asked)))


def _check(asked: dict[str, Any]) -> Answer:
    logs, job = asked.pop("logs"), asked.pop("job", None)
    own = {name: asked.pop(name) for name in ("baseline", "baseline_job", "fail_above", "causes") if name in asked}
    found = api.check(logs, job, **own, **_words(asked))
    return Answer(headline=report.check_line(found), document=report.check_to_dict(found))


def _inspect(asked: dict[str, Any]) -> Answer:
    found = list(api.inspect_all(asked["files"]))
    one = len(found) == 1
    document = report.inspection_to_dict(found[0]) if one else report.inspections_to_dict(found)
    return Answer(
        headline="\n".join(f"{each.path}: {each.generation or each.format}" for each in found), document=document
    )


def _predict_tool() -> Tool:
    return Tool(
        name="predict",
        title="Forecast a step",
        text="Forecast one step of a distributed LLM training job: its time with a 90 % interval, tokens/s, MFU, "
        "memory by pipeline stage, where the time goes, what was assumed, and what would help most.",
        run=_predict,
        arguments={
            **_JOB,
            **_RUN,
            "what_if": _WHAT_IF,
            "allow_oom": {"type": "boolean", "description": "Forecast a job that does not fit into memory, too."},
        },
    )


def _plan_tool() -> Tool:
    layout = {"type": "object", "additionalProperties": {}}
    limits = {
        f"max_{each.name}": _schema(each, f"Largest {each.name} to try.")
        for each in FIELDS.values()
        if each.axis == "limited"
    }
    return Tool(
        name="plan",
        title="Plan a layout",
        text="Find the best parallel layouts of a model on a cluster: what the job says is fixed, what it leaves open "
        "is planned. With several models, clusters or numbers of GPUs, compare them.",
        run=_plan,
        arguments={
            **_JOB,
            **_RUN,
            "gpus": {"type": ["integer", "array"], "items": {"type": "integer"}, "description": FIELDS["gpus"].help},
            "models": _texts("Models to compare."),
            "clusters": _texts("Clusters to compare."),
            "space": {"type": "string", "enum": ["default", "full"], "description": "full: all that can be run."},
            "top": {"type": "integer", "minimum": 1, "description": "Layouts to tell of (10)."},
            "headroom": {"type": "number", "description": "Share of the memory that stays free."},
            "fix": {**layout, "description": 'Values to try of fields of the layout, such as {"tp": [4, 8]}.'},
            "explain": {
                "type": "array",
                "items": layout,
                "description": 'Why not these: [{"tp": 8, "pp": 1}].',
            },
            **limits,
        },
    )


def _explain_tool() -> Tool:
    return Tool(
        name="explain",
        title="Explain a step",
        text="Simulate the files of a run (traces of ranks, profiler or execution traces, a workload, a result.json) "
        "and say why the step takes so long: critical path, stragglers, overlap, what would help.",
        run=_explain,
        arguments={
            "files": _texts("Paths of the files of one run, or of the folder they are in."),
            "cluster": _JOB["cluster"],
            **{each.name: _schema(each, each.help_of_layout) for each in fields(of=LAYOUT)},
            "what_if": _WHAT_IF,
        },
        required=("files",),
    )


def _check_tool() -> Tool:
    return Tool(
        name="check",
        title="Check a run",
        text="Say whether a training run is as fast as it should be, by its log against the forecast of its job or "
        "against a run that was good, and what would explain it.",
        run=_check,
        arguments={
            "logs": _texts("Paths of the logs of one run."),
            **_JOB,
            "baseline": _texts("Paths of the logs of a run that was good."),
            "baseline_job": _text("What ran there (the same job)."),
            "fail_above": _text("How much longer than expected a step may be, such as 5%."),
            "causes": {"type": "boolean", "description": "Look for what would explain a longer step (true)."},
        },
        required=("logs",),
    )


def _inspect_tool() -> Tool:
    return Tool(
        name="inspect",
        title="Say what files are",
        text="Say what files are: format, version, contents, totals, problems.",
        run=_inspect,
        arguments={"files": _texts("Paths of files or folders.")},
        required=("files",),
    )


TOOLS: Mapping[str, Tool] = {
    each.name: each for each in (_predict_tool(), _plan_tool(), _explain_tool(), _check_tool(), _inspect_tool())
}
"""All that programs can ask, by name."""
