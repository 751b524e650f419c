"""The example in the docstring of every public name runs and gives what it says."""

import doctest
import inspect
import shutil
from pathlib import Path

import pytest

import traincast

EXAMPLES = Path(__file__).parents[2] / "examples"
NOT_SHOWN = {"__version__", "api"}
PUBLIC = {name: getattr(traincast, name) for name in traincast.__all__ if name not in NOT_SHOWN} | {
    f"api.{name}": value
    for name, value in ((name, getattr(traincast.api, name)) for name in dir(traincast.api))
    if inspect.isfunction(value)
    and value.__module__.startswith("traincast.api")
    and not name.startswith("_")
    and name not in traincast.__all__
}

LONG = {"calibrate", "plan", "plans", "sweep"}
"""What its example fits or searches takes seconds."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in PUBLIC])
def test_the_example_runs(name, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), {}, name, None, None)
    assert found.examples, f"{name} has no example"
    assert not any(doctest.SKIP in each.options for each in found.examples)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert not said, "".join(said)
