"""The launcher before a training script: which script, and how many ranks it starts.

Read are torchrun (and ``python -m torch.distributed.run`` or ``launch``), srun and sbatch, mpirun and mpiexec,
deepspeed and accelerate; wrappers that start nothing by themselves (``env``, ``nsys profile``, ``numactl``,
``bash -c``, containers) are passed over. Sources: the manuals of torchrun
(docs.pytorch.org/docs/stable/elastic/run.html), Slurm (slurm.schedmd.com/srun.html), Open MPI (docs.open-mpi.org,
mpirun), DeepSpeed and Accelerate.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from traincast.diagnostics import Note, in_brief
from traincast.dialects.shell import Commands, expanded, has_variable, read_commands, replaced
from traincast.shipped import shipped_toml
from traincast.units import brief, count_of, quoted

_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
_MODULE = re.compile(r"^[A-Za-z_][\w]*(?:\.\w+)*$")
_SHORT = re.compile(r"^-([A-Za-z])(\d\S*)$")
_MOST_NESTED = 4


class _Launcher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that say how many ranks a launcher starts."""

    names: tuple[str, ...]
    total: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    one_node: bool = False
    """Whether it starts one node where no number of nodes is given, and one rank of each where none is."""


_TABLE = shipped_toml("dialects/launchers.toml", dict[str, Any])
_BY_NAME = {name: each for each in msgspec.convert(_TABLE["launcher"], list[_Launcher]) for name in each.names}
_OF_LIBRARIES = tuple(_TABLE["libraries"]["variables"])
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_TORCHRUN, _SLURM = _BY_NAME["torchrun"], _BY_NAME["srun"]


class Launch(Struct, frozen=True):
    """A launch line, taken apart."""

    words: tuple[str, ...]
    """What the training script is given; without a script, everything after the launcher."""
    script: str | None
    """The script's file or module."""
    variables: Mapping[str, str]
    """Assignments before the command or in it."""
    gpus: int | None = None
    """Ranks that the launcher starts; None where it does not say."""
    says: str | None = None
    """The options that say so, or why they do not."""
    conditions: bool = False
    """Whether the script has conditions, all branches of which were read."""
    before: tuple[str, ...] = ()
    """The words before the script: launchers and their options."""


def launch_fields(launch: Launch) -> dict[str, Any]:
    """Return the fields of a job that variables of the environment set."""
    return {"launch_blocking": True} if launch.variables.get(_BLOCKING) == "1" else {}


def launch_notes(launch: Launch) -> tuple[Note, ...]:
    """Return notes of conditions in a script and of variables that libraries read and that are not modelled."""
    said = {name: value for name, value in launch.variables.items() if name.startswith(_OF_LIBRARIES)}
    found = [brief(f"{name}={value}") for name, value in said.items() if name != _BLOCKING]
    notes = []
    if found:
        text = f"variables of the environment are not modelled: {', '.join(found)}"
        shown = in_brief("variables of the environment are not modelled", found)
        notes.append(Note("environment-not-modelled", text, brief=shown))
    if launch.conditions:
        notes.append(Note("script-conditions", "conditions of the script are not evaluated: all branches are read"))
    return tuple(notes)


def read_launch(words: Sequence[str], shown: str) -> Launch:
    """Take a pasted launch line apart: its words, or one word with the text of a script.

    Raises
    ------
    ConfigError
        If a quotation does not end.
    """
    said = read_commands(words, shown)
    variables = dict(said.variables)
    command = [*(("sbatch", *said.directives) if said.directives else ()), *_training(said)]
    for _ in range(_MOST_NESTED):
        inner = _nested(command)
        if inner is None:
            break
        place, text = inner
        deeper = read_commands([f"{text} "], shown)
        variables |= deeper.variables
        command = [*command[:place], *_training(deeper)]
    script = _script(command)
    before = command if script is None else command[: script + 1]
    variables |= {
        name: value for name, equals, value in (word.partition("=") for word in before) if _named(name, equals)
    }
    rest = command[_after_launcher(command) :] if script is None else command[script + 1 :]
    variables |= _of_slurm(before)
    variables = {name: replaced(value, variables) for name, value in variables.items()}
    gpus, says = _world(list(expanded(before, variables)))
    rest = list(expanded(rest, variables))
    return Launch(
        tuple(rest), None if script is None else command[script], variables, gpus, says, said.conditions, tuple(before)
    )


def _of_slurm(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that Slurm sets by the options of srun and sbatch (slurm.schedmd.com/srun.html)."""
    places = [place for place, word in enumerate(words) if _BY_NAME.get(_base(word)) is _SLURM]
    options = _options(words[places[0] :]) if places else {}
    found = {variable: _first(options, names) for variable, names in _TABLE["slurm"].items()}
    return {variable: said[1] for variable, said in found.items() if said is not None}


def _named(name: str, equals: str) -> bool:
    return bool(equals) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) is not None


def _training(said: Commands) -> tuple[str, ...]:
    """Return the command that trains: the first with a training script, any script or a launcher, else with a flag."""
    scripts = list(map(_script, said.commands))
    trains: tuple[Callable[[int | None, Sequence[str]], bool], ...] = (
        lambda place, words: place is not None and re.search("train|finetune", _base(words[place])) is not None,
        lambda place, _: place is not None,
        lambda _, words: any(_base(word) in _BY_NAME for word in words) or _nested(words) is not None,
        lambda _, words: any(word.startswith("-") for word in words),
    )
    pairs = list(zip(scripts, said.commands, strict=True))
    found = (words for wanted in trains for place, words in pairs if wanted(place, words))
    return next(found, said.commands[0] if said.commands else ())


def _nested(command: Sequence[str]) -> tuple[int, str] | None:
    """Return where a command inside another begins, and its text: ``bash -c '...'`` or ``--wrap='...'``."""
    for place, word in enumerate(command):
        head, equals, text = word.partition("=")
        if head == "--wrap":
            return place, text if equals else next(iter(command[place + 1 :]), "")
        if place and re.fullmatch(r"-[a-z]*c", word) and any(_base(each) in _SHELLS for each in command[:place]):
            text = next(iter(command[place + 1 :]), "")
            return (place, text) if re.search(r"\s", text) else None
    return None


def _script(command: Sequence[str]) -> int | None:
    """Return where the training script or module stands."""
    for place, word in enumerate(command):
        if word.startswith("-") or re.search(r"\s", word) or (place and command[place - 1] == "-o"):
            continue
        if word.endswith((".py", ".sh")) and "=" not in word:
            return place
        if place and command[place - 1] in ("-m", "--module") and _MODULE.match(word) and word not in _BY_NAME:
            launched = any(_base(each) in _BY_NAME or _base(each).startswith("python") for each in command[:place])
            return place if launched else None
    return None


def _after_launcher(command: Sequence[str]) -> int:
    """Return where the words after the last launcher, interpreter and assignment at the start begin."""
    last = 0
    for place, word in enumerate(command):
        if _base(word) in _BY_NAME or _base(word).startswith("python") or _named(*word.partition("=")[:2]):
            last = place + 1
        elif word.startswith("--"):
            break
    return last


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _world(words: Sequence[str]) -> tuple[int | None, str | None]:
    """Return how many ranks the launchers start, and what says so or why nothing does."""
    places = [(place, _BY_NAME[_base(word)]) for place, word in enumerate(words) if _base(word) in _BY_NAME]
    places = places or [(-1, _TORCHRUN)]
    ends = [*(place for place, _ in places[1:]), len(words)]
    found = [(launcher, _options(words[place + 1 : end])) for (place, launcher), end in zip(places, ends, strict=True)]
    # The innermost launcher that says anything starts the ranks; nodes it does not give are those of the ones outside.
    outer_nodes = None
    for launcher, options in found:
        mine = _first(options, launcher.nodes)
        outer_nodes = mine if mine is not None and launcher is not found[-1][0] else outer_nodes
    for launcher, options in reversed(found):
        said = _ranks(launcher, options, outer_nodes)
        if said is not None:
            return said
    return None, None


def _ranks(
    launcher: _Launcher, options: Mapping[str, str], outer_nodes: tuple[str, str] | None
) -> tuple[int | None, str | None] | None:
    """Return what one launcher says of the ranks; None where it says nothing."""
    name = launcher.names[0]
    total = _first(options, launcher.total)
    if total is not None:
        return _product(name, [total])
    per_node = _first(options, launcher.per_node)
    nodes = _first(options, launcher.nodes) or (outer_nodes if launcher.one_node else None)
    if per_node is not None and (nodes is not None or launcher.one_node):
        return _product(name, [per_node] if nodes is None else [per_node, nodes])
    if per_node is None and nodes is None:
        return None
    given, absent = (nodes, "ranks of a node") if per_node is None else (per_node, "nodes")
    if given is None or (launcher.one_node and given == outer_nodes):
        return None
    return None, f"{name} says {given[0]} {brief(given[1])}, but not the number of {absent}"


def _product(name: str, factors: Sequence[tuple[str, str]]) -> tuple[int | None, str]:
    """Return the product of counts and how it was found; None and why where one of them is not a number."""
    says = f"{name} {' x '.join(f'{option} {brief(value)}' for option, value in factors)}"
    product = 1
    for option, value in factors:
        low, colon, high = value.partition(":") if "gres" not in option else ("", "", "")
        plain = value.rpartition(":")[2] if "gres" in option else low if colon and low == high else value
        count = count_of(plain)
        if count is None:
            return None, f"{says}: {_why(value)}"
        product *= count
    return product, says


def _why(value: str) -> str:
    if has_variable(value):
        return f"{brief(value)} has no value here"
    if re.fullmatch(r"\d+[:-]\d+", value):
        return f"{brief(value)} is a range"
    if value in ("gpu", "auto", "cpu", "xpu"):
        return f"{value} stands for what a node has"
    return f"{quoted(value)} is not a number of ranks or nodes"


def _first(options: Mapping[str, str], names: Sequence[str]) -> tuple[str, str] | None:
    """Return the first option of several names that is given, as it is typed, and its value."""
    for name in names:
        if name in options:
            return ("-" if len(name) <= 2 else "--") + name, options[name]
    return None


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a launcher that have a value; the last of several counts."""
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        short = _SHORT.match(word)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if short:
            found[short[1]] = short[2]
        elif equals:
            found[name] = value
        elif place + 1 < len(words) and not words[place + 1].startswith("-"):
            found[name] = words[place + 1]
    return found
