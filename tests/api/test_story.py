"""The notebook among the examples is kept without its outputs; CI runs it where Jupyter is installed."""

import ast
import json
from pathlib import Path

import traincast

STORY = json.loads((Path(__file__).parents[2] / "examples" / "story.ipynb").read_text(encoding="utf-8"))


def test_the_notebook_is_kept_clean_and_speaks_of_what_there_is():
    code = [cell for cell in STORY["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    nodes = [node for cell in code for node in ast.walk(ast.parse("".join(cell["source"])))]
    used = {n.attr for n in nodes if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "traincast"}
    assert {"predict", "plan"} <= used <= {*traincast.__all__}


def test_the_story_is_told_in_words():
    told = "".join("".join(cell["source"]) for cell in STORY["cells"] if cell["cell_type"] == "markdown")
    for chapter in ("What everybody would run", "What if?", "What should we run?", "A picture"):
        assert chapter in told
