"""The shape of the source tree: who may import whom, and what every module owes its reader."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import traincast

SOURCE = Path(traincast.__file__).parent
ROOT = Path(__file__).parent.parent
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 600
ROOMS = (
    "names",
    "errors",
    "lazy",
    "later",
    "shipped",
    "units",
    "files",
    "registry",
    "tables",
    "diagnostics",
    "progress",
    "crew",
    "machine_code",
    "hardware",
    "model",
    "schedules",
    "job",
    "mechanisms",
    "dialects",
    "workload",
    "lowering",
    "formats",
    "fabric",
    "estimate",
    "engine",
    "analysis",
    "simulation",
    "planning",
    "sweeps",
    "measuring",
    "calibration",
    "checking",
    "report",
    "api",
    "serve",
    "cli",
)
"""From the ground up; a room imports only those before it."""
FRONT = {"__init__", "__main__"}
CLOSED = {
    "engine": {"errors", "machine_code", "engine"},
    "cli": {
        "api",
        "serve",
        "checking",
        "schedules",
        "simulation",
        "report",
        "diagnostics",
        "progress",
        "crew",
        "hardware",
        "model",
        "job",
        "dialects",
        "names",
        "errors",
        "units",
        "cli",
    },
}
"""Rooms that may import less than what is before them."""


def room_of(path):
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def listed(breaches):
    """Return every breach of a rule on a line of its own."""
    return "".join(f"\n{module_name(path)}: {what}" for path, what in breaches)


def imported_rooms(path):
    """Return the rooms of every import of a module, wherever it stands."""
    found = set()
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module or ""]
            if node.module == "traincast":
                names = [f"traincast.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("traincast.")}
    return found - {"__version__"}


@pytest.mark.slow
def test_a_room_imports_only_rooms_above_it():
    assert {room_of(path) for path in MODULES} - FRONT <= {*ROOMS}, "a room that the design does not have"
    breaches = [
        (path, f"imports {', '.join(sorted(wrong))}")
        for path in MODULES
        if (room := room_of(path)) not in FRONT
        and (wrong := imported_rooms(path) - CLOSED.get(room, {*ROOMS[: ROOMS.index(room) + 1]}))
    ]
    assert not breaches, listed(breaches)


def flaws(path):
    """Yield what a module lacks that every one has."""
    lines = len(path.read_text().splitlines())
    if not ast.get_docstring(tree_of(path)):
        yield "does not say what it is for"
    if lines > LONGEST:
        yield f"has {lines} lines, over {LONGEST}"
    # Asserts vanish under `python -O`; what must hold raises an error of its own.
    asserts = [node.lineno for node in ast.walk(tree_of(path)) if isinstance(node, ast.Assert)]
    if asserts:
        yield f"asserts in lines {asserts}"


@pytest.mark.slow
def test_a_module_says_what_it_is_for_and_is_short_enough():
    breaches = [(path, flaw) for path in MODULES for flaw in flaws(path)]
    assert not breaches, listed(breaches)


def test_the_engine_stands_on_arrays_alone():
    for path in (path for path in MODULES if room_of(path) == "engine"):
        for node in ast.walk(tree_of(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= {"traincast", "numpy", "numba", *sys.stdlib_module_names}


def test_a_public_name_is_there_and_documented():
    values = {name: getattr(traincast, name) for name in traincast.__all__ if name != "__version__"}
    assert traincast.__version__
    undocumented = [name for name, value in values.items() if not (value.__doc__ or "").strip()]
    assert not undocumented


def _in_first_cells(tables):
    cells = re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE)
    return sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell))


def _is_public(name, value):
    return not name.startswith("_") and inspect.isfunction(value) and value.__module__.startswith("traincast.api")


def test_public_names_are_those_of_the_page_and_no_others():
    assert list(traincast.__all__) == sorted(traincast.__all__) == dir(traincast)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    _, ours, beside = re.split(r"^## `traincast.*$", page, flags=re.MULTILINE)
    assert _in_first_cells(ours) == traincast.__all__
    public = {name for name in dir(traincast.api) if _is_public(name, getattr(traincast.api, name))}
    assert _in_first_cells(beside) == sorted(public - {*traincast.__all__})
    with pytest.raises(AttributeError, match="no_such_name"):
        traincast.no_such_name  # noqa: B018


FACADES = [path for path in MODULES if "names_on_demand(" in path.read_text() and path.name == "__init__.py"]
"""Packages that import a name when it is first used."""


@pytest.mark.parametrize("path", FACADES, ids=module_name)
def test_a_public_name_is_found_where_type_checkers_find_it(path):
    """What a package imports for type checkers alone is what it hands out."""
    (block,) = (node for node in tree_of(path).body if isinstance(node, ast.If))
    found = {alias.name: node.module for node in block.body for alias in node.names}
    package = importlib.import_module(module_name(path))
    assert {*dir(package)} - {"__version__"} == {*found}
    for name, module in found.items():
        holder = importlib.import_module(module)
        assert getattr(package, name) is getattr(holder, name, sys.modules.get(f"{module}.{name}"))


@pytest.mark.parametrize("path", FACADES, ids=module_name)
def test_no_module_takes_the_name_of_what_its_package_hands_out(path):
    """Python binds a module that it imports in its package, over what had its name there."""
    beside = {each.stem for each in path.parent.iterdir()}
    assert {*dir(importlib.import_module(module_name(path)))} & beside <= {"api"}, "which is public itself"


def test_the_package_is_marked_as_typed_and_ships_whole():
    assert (SOURCE / "py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/traincast"]}, "hatch ships every file of a package, unless told otherwise"


def _is_overload(node):
    """Whether a function only says types; the one that it is of is documented."""
    return any(getattr(each, "id", None) == "overload" for each in node.decorator_list)


def test_every_public_function_of_the_facade_is_documented():
    breaches = [
        (path, node.name)
        for path in MODULES
        if room_of(path) == "api"
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_overload(node)
        if not ast.get_docstring(node)
    ]
    assert not breaches, listed(breaches)


def test_every_table_for_people_is_written_by_one_line():
    """What the cells of `csv_line` are safe from, those of another writer are not; these are read back as they are."""
    writers = {
        path.relative_to(SOURCE).as_posix() for path in MODULES if re.search(r"csv\.(w|DictW)riter", path.read_text())
    }
    assert writers == {"report/plain.py", "estimate/operators/constants.py", "measuring/timing.py"}
