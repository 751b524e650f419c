"""How soon traincast starts: which modules it loads for that, and how long it takes beside `import numpy`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NUMPY = "import numpy"
HELP = "import sys; from traincast.cli.main import main; main(['--help'])"
RATIOS = {HELP: 1.5, "import traincast": 1.3}
"""How long each may take at most, over the time of numpy."""
TRIES = 5


def loaded_by(code):
    """Return the top packages, and modules of ours, that a new process has loaded at its end."""
    told = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return {*ran.stderr.split()}


def cpu_seconds(code):
    """Return the processor's time that a new process takes; that on the clock is what else runs here, too."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize(
    ("code", "unwanted", "most"),
    [
        ("import traincast; dir(traincast), traincast.api", {"numpy", "msgspec", "click", "rich", "yaml"}, 5),
        (HELP, {"numpy", "numba", "msgspec", "rich", "yaml", "importlib.metadata"}, 20),
    ],
    ids=["import", "help"],
)
def test_nothing_is_loaded_that_starting_does_not_need(code, unwanted, most):
    loaded = loaded_by(code)
    assert not loaded & unwanted
    assert len([name for name in loaded if name.startswith("traincast")]) <= most


FORMATS = {
    "read": "from traincast import api; api.inspect('examples/aicb_gpt_405b_1024gpu.txt')",
    "written": "from traincast.formats.writer import WRITERS; WRITERS.get('aicb')",
}


@pytest.mark.parametrize("code", FORMATS.values(), ids=FORMATS)
def test_one_format_is_read_and_written_without_the_others(code, monkeypatch):
    monkeypatch.chdir(ROOT)
    room = re.compile(r"traincast\.formats\.(\w+)\.(?:reader|read|write)$")
    assert {found[1] for name in loaded_by(code) if (found := room.match(name))} == {"aicb"}


@pytest.mark.slow
@pytest.mark.parametrize("code", RATIOS, ids=["help", "import"])
def test_traincast_starts_about_as_fast_as_numpy(code):
    """Measured in turn, the best of a few, so that what else runs here slows both."""
    times = [(cpu_seconds(code), cpu_seconds(NUMPY)) for _ in range(TRIES)]
    ours_s, numpy_s = map(min, zip(*times, strict=True))
    assert ours_s < RATIOS[code] * numpy_s
