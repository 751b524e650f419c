"""Settings of a recipe that a Python script changes, read from its text; the script is never run.

Read are assignments of values to attributes of a configuration (``cfg.model.context_parallel_size = 2``), and the call
that makes it (``cfg = llama3_70b_pretrain_config()``) with its keywords. What is no plain value is warned of.
"""

import ast
from pathlib import Path

from msgspec import Struct, field

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import read_text, warnings_of_python
from traincast.units import brief

_NAMES = frozenset(("cfg", "config", "recipe", "conf"))
_ENDINGS = ("_config", "_recipe")


class PythonSettings(Struct):
    """What a script says."""

    recipe: str | None = None
    """The function that makes the configuration."""
    settings: dict[str, str] = field(default_factory=dict)
    """Dotted name, without that of the configuration, to its value as a command line has it."""
    warnings: list[Note] = field(default_factory=list)
    """Assignments of what is no plain value."""


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
    found = PythonSettings()
    roots = set(_NAMES)
    for node in nodes:
        target = node.targets[0]
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            name = _called(node.value)
            if name.endswith(_ENDINGS):
                roots.add(target.id)
                found.recipe = name
                said = {f"recipe.{each.arg}": _value(each.value) for each in node.value.keywords if each.arg}
                found.settings |= {key: value for key, value in said.items() if value is not None}
        elif isinstance(target, ast.Attribute):
            root, path_of = _chain(target)
            if root in roots:
                _take(found, path_of, node, str(path))
    return found


def _take(found: PythonSettings, name: str, node: ast.Assign, shown: str) -> None:
    value = _value(node.value)
    if value is not None:
        found.settings[name] = value
        return
    text = f"{name} = {brief(ast.unparse(node.value))} is no plain value and is not read; write the value"
    found.warnings.append(Note("flag-not-modelled", text, f"{shown}:{node.lineno}"))


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
