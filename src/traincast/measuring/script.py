"""One Python file that times a job's operators and collectives where traincast is not installed."""

import ast
import json
from collections.abc import Sequence
from importlib import resources

from traincast.measuring.timing import Task

_MODULES = ("timing", "kernels", "collectives", "run")
"""In the order in which they need each other; they import nothing else of traincast."""


def script(name: str, operators: Sequence[Task], collectives: Sequence[Task]) -> str:
    """Return the text of a script for the tasks of a job of that name."""
    parts = [
        f'"""Times the operators of {json.dumps(name)[1:-1]} on this GPU, or under torchrun its collectives.\n\n'
        "Written by traincast measure --script; needs PyTorch alone.\n\n"
        "    python measure.py [OUT.csv] [MINUTES]\n"
        '    torchrun --nproc-per-node 8 measure.py [OUT.csv] [MINUTES]\n"""\n'
    ]
    parts += [_body(module) for module in _MODULES]
    parts += [f"{kind.upper()} = [\n{_rows(tasks)}]\n" for kind, tasks in _kinds(operators, collectives)]
    return "\n\n".join(parts) + '\n\nif __name__ == "__main__":\n    main(OPERATORS, COLLECTIVES)\n'


def _kinds(operators: Sequence[Task], collectives: Sequence[Task]) -> tuple[tuple[str, Sequence[Task]], ...]:
    return ("operators", operators), ("collectives", collectives)


def _rows(tasks: Sequence[Task]) -> str:
    return "".join(f"    Task({dict(task.cells)!r}, {task.count!r}, {task.share!r}),\n" for task in tasks)


def _body(module: str) -> str:
    """Return the source of a module without its docstring and its imports of traincast."""
    text = (resources.files("traincast") / "measuring" / f"{module}.py").read_text(encoding="utf-8")
    nodes = ast.parse(text).body
    left_out = {0} | {
        index
        for index, node in enumerate(nodes)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("traincast")
    }
    lines = text.splitlines()
    for node in (nodes[index] for index in left_out):
        lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines).strip() + "\n"
