"""What people paste: flags, scripts, recipes, configuration files, command lines; read as the fields of a form."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from traincast import api
from traincast.dialects import LIKES, draft_like, likely_framework
from traincast.dialects.recognise import HUGGING_FACE, WHAT, is_script, told_as
from traincast.errors import ConfigError, TraincastError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import cluster_table
from traincast.job.draft import Draft, Setting
from traincast.job.fields import FIELDS
from traincast.job.flags import flag_of
from traincast.job.options import StepOptions
from traincast.job.request import JOB_FIELDS, REQUIRED
from traincast.serve.answers.bench import Workbench
from traincast.serve.answers.forecasts import note_shown
from traincast.serve.answers.words import OTHERS, words_of
from traincast.serve.records.forms import Misunderstood, PastedJob, TextRecord
from traincast.serve.records.values import Value
from traincast.tables import as_table

_OWN = ("traincast", "predict", "plan")
_COMMAND = re.compile(r"^\s*(?:\$\s*)?traincast\s+(?:predict|plan)\b")
_SUFFIXES = (".json", ".toml", ".yaml", ".yml", ".py", ".sh", ".txt", ".log", ".sbatch")


def read(asked: TextRecord, bench: Workbench) -> PastedJob:
    """Read flags, a script, a recipe, a configuration file or a command line as a job."""
    if not asked.text.strip():
        raise ConfigError("is empty; paste flags, a script, a recipe or a configuration file", "text")
    if _COMMAND.match(asked.text):
        return _own(asked.text, bench)
    path = _written(asked, bench.scratch)
    like = asked.like or told_as(path) or ""
    if like == HUGGING_FACE:
        return PastedJob(job={"model": asked.text.strip()}, what=WHAT[like])
    draft, what = _draft(asked, path, like)
    return reading_of(draft, what, bench.scratch)


def _written(asked: TextRecord, scratch: Path) -> Path:
    """Write the text into a file whose ending says what it looks like."""
    given = Path(asked.name).suffix.lower()
    path = scratch / f"pasted{given if given in _SUFFIXES else _suffix(asked.text)}"
    path.write_text(asked.text, encoding="utf-8")
    return path


def _suffix(text: str) -> str:
    """Return the ending of a file that such a text would be."""
    stripped = text.lstrip()
    if stripped.startswith("{"):
        return ".json"
    if re.search(r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+import|import[ \t]+[\w.]+)\b", text, re.MULTILINE):
        return ".py"
    if re.search(r"^[ \t]*\[[\w.\"-]+\][ \t]*$", text, re.MULTILINE):
        return ".toml"
    if not re.search(r"(?:^|\s)--?\w", text) and re.search(r"^[\w.-]+:(?:\s|$)", text, re.MULTILINE):
        return ".yaml"
    return ".sh"


def _draft(asked: TextRecord, path: Path, like: str) -> "tuple[Draft, str]":
    """Return the job that a text describes, and what it was taken as."""
    if like in LIKES and path.suffix in (".sh", ".txt", ".log", ".sbatch"):
        return draft_like(like, [f"{asked.text} "]), WHAT[like]
    if like in LIKES:
        words = ("--job.config_file", path.name) if like == "torchtitan" else (path.name,)
        return draft_like(like, list(words)), WHAT[like]
    if "--" in asked.text and path.suffix == ".sh" and not is_script(asked.text):
        like = likely_framework(asked.text.split())
        return draft_like(like, [f"{asked.text} "]), f"flags of {WHAT[like].rpartition(' of ')[2]}"
    return api.described(path.name), "job file" if path.suffix == ".toml" else "description of a job"


def reading_of(draft: Draft, what: str, scratch: Path) -> PastedJob:
    """Return a job that was read as the fields of a form."""
    found, lost = _fields(draft, scratch)
    unread = [_misunderstood(each) for each in draft.settings if each.effect in ("not_modelled", "unknown")]
    told = [each for each in draft.warnings if each.code not in ("flag-unknown", "flag-not-modelled")]
    return PastedJob(
        job=found,
        what=what,
        not_understood=(*lost, *unread),
        assumptions=tuple(map(note_shown, draft.notes)),
        warnings=tuple(map(note_shown, told)),
        missing=draft.missing() or "",
    )


def _misunderstood(setting: Setting) -> Misunderstood:
    why = setting.why or ("no setting of this framework is known by that name" if setting.effect == "unknown" else "")
    more = f"; {setting.matters}" if setting.matters else ""
    return Misunderstood(text=f"{setting.name} {setting.value}".strip(), why=f"{why}{more}" or "it is not modelled")


def _fields(draft: Draft, scratch: Path) -> tuple[dict[str, Value], list[Misunderstood]]:
    """Return the fields of a draft; a model or cluster that is a file of its own is left out, and told."""
    found: dict[str, Value] = {}
    lost = []
    named = (("model", draft.model), ("cluster", None if draft.cluster_assumed else draft.cluster))
    for name, value in named:
        if value is None:
            continue
        text = str(value) if isinstance(value, str | Path) else _as_text(value)
        try:
            words_of({name: text}, scratch)
            found[name] = text
        except TraincastError as error:
            lost.append(Misunderstood(text=f"{name} {text}"[:200], why=f"{error}"[:300]))
    for name, value in draft.finished(_model_of(draft)).items():
        if value is not None and name in JOB_FIELDS and name != "model":
            found[name] = _value(value)
    return found, lost


def _model_of(draft: Draft) -> Any:  # noqa: ANN401
    try:
        return draft.loaded_model()
    except TraincastError:
        return None


def _value(value: Any) -> Value:  # noqa: ANN401
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | bool | list) else str(getattr(value, "name", value))


def _as_text(value: Any) -> str:  # noqa: ANN401
    """Return a model or a cluster that was made of a text as the JSON of its table."""
    table = cluster_table(value) if isinstance(value, Cluster) else as_table(value, leave_out=("notes",))
    return msgspec.json.encode(table).decode()


def _own(text: str, bench: Workbench) -> PastedJob:
    """Return the job of a command line of ours."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    words = [each for each in words if each not in ("$", *_OWN)]
    job: dict[str, Value] = {}
    lost = []
    for name, value, shown in _flags(words):
        if name in JOB_FIELDS or name in StepOptions.__struct_fields__ or name in OTHERS:
            job[name] = value
        else:
            lost.append(Misunderstood(text=shown, why="it says nothing of a job that a form has"))
    for name in ("model", "cluster", "framework"):
        try:
            words_of({name: job.get(name)}, bench.scratch)
        except TraincastError as error:
            lost.append(Misunderstood(text=f"{name} {job.pop(name)}", why=f"{error}; paste the text of the file"[:300]))
    missing = next((name for name in REQUIRED if name not in job), "")
    return PastedJob(job=job, what="command line of traincast", not_understood=tuple(lost), missing=missing)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Value, str]]:
    """Yield the field, the value and the text of each flag."""
    typed = {flag: each.name for each in FIELDS.values() for flag in each.flags if "job" in each.of}
    named = {flag_of(each): each for each in (*StepOptions.__struct_fields__, *OTHERS)} | typed
    switches = {each.flags[0] for each in FIELDS.values() if each.takes == "switch" and each.flags}
    switches |= {"--allow-oom", "--unfold", "--strict", "--json", "--quiet", "--verbose", "--analysis", "--suggest"}
    left = list(words)
    while left:
        word, equals, value = left.pop(0).partition("=")
        negated = word.startswith("--no-") and f"--{word[5:]}" in (*switches, *named)
        flag = f"--{word[5:]}" if negated else word
        if negated or flag in switches:
            yield named.get(flag, flag), not negated, word
        elif not word.startswith("--"):
            yield "", word, word
        else:
            said = value if equals else left.pop(0) if left and not left[0].startswith("--") else ""
            yield named.get(flag, flag), said, f"{word} {said}".strip()
