"""Recipes of Megatron-Bridge and NeMo as jobs: overrides, YAML files and Python scripts, read as text and never run.

Both lay their settings out in sections (``model.tensor_model_parallel_size``) whose names are those of Megatron-LM's
arguments, so that a recipe becomes Megatron-LM's flags. Of Python scripts the assignments to attributes count
(``cfg.model.context_parallel_size = 2``) and the recipe that is called; what recipes of Megatron-Bridge set is a table.
Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py (2026-08); NVIDIA/NeMo, v1.23 and v2.4.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traincast.diagnostics import Note
from traincast.dialects.flags import UNKNOWN, flag_table
from traincast.dialects.launch import Launch, read_launch
from traincast.dialects.megatron_flags import draft_of_megatron
from traincast.dialects.python_settings import read_python
from traincast.dialects.recipe_flags import RecipeFlags, fates_of, notes_of, recipe_flags, warnings_of
from traincast.dialects.references import resolved
from traincast.dialects.settings import input_files, settings_of_file, words_of_launch
from traincast.errors import ConfigError
from traincast.hardware.clusters import cluster_names
from traincast.job.draft import Draft
from traincast.model.load import find_model
from traincast.names import find_name
from traincast.shipped import shipped_rows
from traincast.units import count_of, quoted

_ASSIGNED = re.compile(r"^[+~]{0,2}([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)
_SIZE = re.compile(r"^(.*?(?<!\d)\d++(?:p\d++)?b(?:_a\d++b)?)(?:_.*)?$")


def draft_of_bridge(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a recipe of Megatron-Bridge with its overrides; see `traincast.dialects.draft_like`.

    Raises
    ------
    ConfigError
        If a setting has a wrong value.
    FormatError
        If a file cannot be read.
    """
    return _draft("bridge", words, strict=strict)


def draft_of_nemo(words: Sequence[str], *, strict: bool = False) -> Draft:
    """Read a recipe of NeMo 2 with its overrides, or a YAML file of NeMo 1 (errors as `draft_of_bridge`)."""
    return _draft("nemo", words, strict=strict)


class _Recipe(Struct):
    """What was found so far."""

    said: dict[str, str] = field(default_factory=dict)
    """Dotted name to its value; that of a switch that is on is empty, of one that is off ``false``."""
    name: str | None = None
    files: list[str] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)


def _draft(like: str, words: Sequence[str], *, strict: bool) -> Draft:
    table, shown = flag_table(like).further, f"{like} settings"
    launch = read_launch(words, shown)
    found = _Recipe()
    _collect(found, launch, table, shown)
    known = _known_recipe(found.name, table)
    settings = {**({} if found.name is None else table["common"]), **known.settings, **found.said}
    settings = resolved(settings)
    found_flags = recipe_flags(settings, table, shown, usual=set(settings) - set(found.said))
    gpus, says = _gpus(launch, settings, known, table)
    draft = _of_flags(found_flags, gpus, strict=strict)
    framework = table["framework"]
    text = f"framework is not given: {framework}, for {like}; give --framework"
    notes = [note for note in draft.notes if note.code != "assumed-framework"]
    fates = fates_of(settings, found_flags, draft.settings, table)
    unknown = [each.name for each in fates if each.effect == UNKNOWN and each.name in found_flags.left]
    if unknown and strict:
        raise ConfigError(f"is not a known setting of {like}; leave it out, or leave out --strict", unknown[0])
    model, why = _model(found.name, settings, known)
    cluster = find_name(settings.get("gpu", ""), cluster_names())
    if cluster is None and "gpu" in settings:
        found.warnings.append(
            Note("cluster-unknown", f"--gpu {settings['gpu']} is not a known cluster; give --cluster")
        )
    return replace(
        draft,
        model=draft.model or model,
        cluster=cluster,
        fields={**draft.fields, "framework": framework},
        notes=(
            *_said_of_recipe(known),
            *notes_of(fates, found_flags),
            *notes,
            Note("assumed-framework", text),
        ),
        settings=fates,
        warnings=(
            *found.warnings,
            *draft.warnings,
            *warnings_of(fates, found_flags, like),
            *_not_run(found.name, known, like),
        ),
        launched=launch.gpus,
        whys={"gpus": says, "model": why},
        inputs=input_files(found.files, like),
    )


def _of_flags(found: RecipeFlags, gpus: int | None, *, strict: bool) -> Draft:
    """Return the job of flags; an error names the setting that was typed, not the flag that it became."""
    words = [*found.words, *([] if gpus is None else ["--world-size", str(gpus)])]
    try:
        return draft_of_megatron(words, strict=strict)
    except ConfigError as error:
        typed = found.typed((error.field or "").split(" ")[0].lstrip("-"))
        if typed is None or type(error) is not ConfigError:
            raise
        raise ConfigError(str(error).removeprefix(f"{error.field}: "), typed) from None


def _collect(found: _Recipe, launch: Launch, table: Mapping[str, Any], shown: str) -> None:
    """Read the words in their order: files, options of the scripts, overrides; the later count."""
    words = words_of_launch(launch)
    if launch.script is not None and launch.script.endswith(".py") and Path(launch.script).is_file():
        words = [launch.script, *words]
    over: dict[str, str] = {}
    rest = iter(enumerate(words))
    for place, word in rest:
        assigned = _ASSIGNED.match(word)
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            following = words[place + 1] if place + 1 < len(words) else ""
            takes = not equals and following and not following.startswith("-") and not _ASSIGNED.match(following)
            if takes:
                next(rest)
            _option(found, over, name.replace("_", "-"), value if equals else following if takes else "", table, shown)
        elif assigned:
            over[assigned[1]] = assigned[2].strip("'\"") if not word.startswith("~") else "None"
        elif word.lower().endswith((".yaml", ".yml", ".json", ".py")):
            _file(found, word)
    found.said |= over
    if found.name is not None and "finetune" in words:
        found.name = f"{found.name}_finetune"


def _option(found: _Recipe, over: dict[str, str], name: str, value: str, table: Mapping[str, Any], shown: str) -> None:
    """Read an option of the framework's own scripts."""
    means = table["options"].get(name)
    if means is None:
        found.warnings.append(Note("flag-unknown", f"--{name} {value}".strip() + f" is not read (in {shown})"))
    elif means == "file":
        _file(found, value)
    elif means == "recipe":
        head, bracket, arguments = value.partition("(")
        found.name = head
        for each in arguments.rstrip(") ").split(",") if bracket else ():
            key, equals, text = each.partition("=")
            over |= {f"recipe.{key.strip()}": text.strip()} if equals else {}
    elif means:
        over[means] = value


def _file(found: _Recipe, path: str) -> None:
    """Read a file of settings, or a Python script as text."""
    found.files.append(path)
    if path.endswith(".py"):
        script = read_python(Path(path))
        found.name = script.recipe or found.name
        found.said |= script.settings
        found.warnings += script.warnings
    else:
        found.said |= {name: " ".join(values) for name, values in settings_of_file(path).items()}


class _Known(Struct, frozen=True):
    """What a recipe sets that is in the table."""

    name: str | None = None
    model: str | None = None
    gpus: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def _known_recipe(name: str | None, table: Mapping[str, Any]) -> _Known:
    if name is None or "recipes" not in table:
        return _Known()
    for row in shipped_rows(f"dialects/{table['recipes']}"):
        if name in (row["recipe"], *row["aliases"].split()):
            pairs = (each.partition("=") for each in row["settings"].split(";") if each)
            said = {key: "" if value == "True" else value for key, _, value in pairs}
            return _Known(row["recipe"], row["model"], int(row["gpus"]), said)
    return _Known()


def _gpus(
    launch: Launch, settings: Mapping[str, str], known: _Known, table: Mapping[str, Any]
) -> tuple[int | None, str | None]:
    """Return the ranks: of the launcher, of the settings, or of the recipe's name."""
    if launch.gpus is not None:
        return launch.gpus, launch.says
    if (count := count_of(settings.get("gpus", ""))) is not None:
        return count, f"num_gpus {count}"
    said = {table["paths"].get(name): count_of(value) for name, value in settings.items()}
    nodes, each = said.get("num_nodes"), said.get("num_gpus")
    if nodes is not None and each is not None:
        return nodes * each, f"{nodes} nodes of {each} devices"
    return (known.gpus, f"recipe {known.name}") if known.gpus is not None else (None, launch.says)


def _model(name: str | None, settings: Mapping[str, str], known: _Known) -> tuple[str | None, str | None]:
    """Return the model of the recipe: that of the table, or the one that the recipe is named after."""
    if known.model is not None:
        return known.model, None
    parts = [settings[each] for each in ("model", "model_size") if each in settings]
    tried = "_".join(parts) or name
    if tried is None:
        return None, None
    size = _SIZE.match(tried)
    for each in (tried, size[1] if size else tried):
        spelled = re.sub(r"^(llama|qwen)(\d)(\d)_", r"\1\2.\3_", each)
        if (found := find_model(each) or find_model(spelled)) is not None:
            return found, None
    return None, f"the recipe {quoted(tried)} is not named after a known model"


def _said_of_recipe(known: _Known) -> Iterator[Note]:
    if known.name is not None:
        text = ", ".join(f"{name.rpartition('.')[2]} {value or 'on'}" for name, value in known.settings.items())
        brief = f"recipe {known.name} sets {len(known.settings)} settings that are not given otherwise"
        yield Note("recipe", f"recipe {known.name} sets what is not given otherwise: {text}", brief=brief)


def _not_run(name: str | None, known: _Known, like: str) -> Iterator[Note]:
    if name is not None and known.name is None:
        text = f"recipe {name} is a function of {like}, which is not run: only the settings that are given count"
        yield Note("flag-not-modelled", f"{text}; it may matter much: give its degrees and batch", "recipe")
