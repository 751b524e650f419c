"""Settings of a recipe that a Python script changes, read from its text; the script is never run.

Read are assignments of values to attributes of a configuration (``cfg.model.context_parallel_size = 2``), and the call
that makes it (``cfg = llama3_70b_pretrain_config()``) with its keywords. A variable that is given one plain value, and
a parameter of a function of the script by its default or by what the function is called with, is that value. What is no
plain value is warned of.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import read_text, warnings_of_python
from traincast.units import brief

_NAMES = frozenset(("cfg", "config", "recipe", "conf"))
_ENDINGS = ("_config", "_recipe")
_PASSED_ON = 4
"""Variables that a value passes through at most, from the first to where it is used."""


class PythonSettings(Struct):
    """What a script says."""

    recipe: str | None = None
    """The function that makes the configuration."""
    settings: dict[str, str] = field(default_factory=dict)
    """Dotted name, without that of the configuration, to its value as a command line has it."""
    warnings: list[Note] = field(default_factory=list)
    """Assignments of what is not a plain value."""


def read_python(path: Path) -> PythonSettings:
    """Read a script.

    Raises
    ------
    FormatError
        If it cannot be read or is not Python, with its line.
    """
    text = read_text(path)
    try:
        with warnings_of_python("ignore"):
            tree = ast.parse(text)
        nodes = sorted((each for each in ast.walk(tree) if isinstance(each, ast.Assign)), key=lambda node: node.lineno)
    except SyntaxError as error:
        raise FormatError(f"is not Python: {error.msg}", str(path), error.lineno) from None
    except (ValueError, RecursionError, MemoryError):
        raise FormatError("is not Python that can be read", str(path)) from None
    found, plain = PythonSettings(), _variables(tree)
    own = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    roots = set(_NAMES)
    for node in nodes:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            name = _called(node.value)
            if name.endswith(_ENDINGS) and name not in own:
                roots.add(target.id)
                found.recipe = name
                for each in node.value.keywords:
                    if each.arg:
                        _take(found, f"recipe.{each.arg}", each.value, plain, str(path))
        elif isinstance(target, ast.Attribute):
            root, path_of = _chain(target)
            if root in roots:
                _take(found, path_of, node.value, plain, str(path))
    return found


def _take(found: PythonSettings, name: str, node: ast.expr, plain: Mapping[str, str], shown: str) -> None:
    value = _plain(node, plain)
    if value is not None:
        found.settings[name] = value
    elif not (isinstance(node, ast.Constant) and node.value is None):
        text = f"{name} = {brief(ast.unparse(node))} is not a plain value and is not read; write the value"
        found.warnings.append(Note("flag-not-modelled", text, f"{shown}:{node.lineno}"))


def _variables(tree: ast.Module) -> dict[str, str]:
    """Return the names that stand for one plain value wherever they are given one."""
    given: dict[str, list[ast.expr]] = {}
    functions: dict[str, ast.FunctionDef] = {}
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            given.setdefault(node.target.id, []).append(node.target)  # no plain value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            given.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.setdefault(node.func.id, []).append(node)
    for name, function in functions.items():
        for parameter, values in _arguments(function, calls.get(name, [])).items():
            given.setdefault(parameter, []).extend(values)
    plain: dict[str, str] = {}
    for _ in range(_PASSED_ON):
        values_of = {name: {_plain(each, plain) for each in values} for name, values in given.items()}
        plain = {name: value for name, (value, *others) in values_of.items() if value is not None and not others}
    return plain


def _plain(node: ast.expr, plain: Mapping[str, str]) -> str | None:
    return plain.get(node.id) if isinstance(node, ast.Name) else _value(node)


def _arguments(function: ast.FunctionDef, calls: Sequence[ast.Call]) -> dict[str, list[ast.expr]]:
    """Return what each parameter of a function is given: in its calls, else by its default."""
    said = function.args
    names = [each.arg for each in (*said.posonlyargs, *said.args)]
    defaults = dict(zip(reversed(names), reversed(said.defaults), strict=False))
    defaults |= {each.arg: value for each, value in zip(said.kwonlyargs, said.kw_defaults, strict=True) if value}
    found: dict[str, list[ast.expr]] = {}
    for call in calls:
        given = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
        for name, value in (defaults | given).items():
            found.setdefault(name, []).append(value)
    return found or {name: [value] for name, value in defaults.items()}


def _chain(node: ast.expr) -> tuple[str | None, str]:
    """Return the name that attributes are of, and their path."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), ".".join(reversed(parts))


def _called(node: ast.Call) -> str:
    """Return the name of what is called; of a module's function (``llm.llama3_8b.pretrain_recipe``) the module's."""
    root, path = _chain(node.func)
    names = [each for each in (root, *path.split(".")) if each]
    generic = len(names) > 1 and names[-1] in ("pretrain_recipe", "finetune_recipe")
    return f"{names[-2]}_{names[-1]}" if generic else names[-1] if names else ""


def _value(node: ast.expr) -> str | None:
    """Return a plain value as the command line has it, a type or a named precision by its name; else None."""
    if isinstance(node, ast.Attribute):
        root, path = _chain(node)
        return path if root == "torch" else None
    if isinstance(node, ast.Call):
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            return node.args[0].value
        name = _called(node)
        return name if name.endswith("_mixed") and not node.args else None
    return _literal(node)


def _literal(node: ast.expr) -> str | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, bool):
        return "" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return None if isinstance(value, dict) else str(value)
