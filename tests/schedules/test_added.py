"""The schedule that the page on adding adds, as one file, is planned, forecast, simulated and listed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traincast
from conformance import test_schedules as conformance
from traincast.schedules.schedule import SCHEDULES

ROOT = Path(__file__).parents[2]
(CODE,) = re.findall(r'```python\n("""GPipe as its paper.*?)```', (ROOT / "docs" / "adding.md").read_text(), re.DOTALL)
NAME = "gpipe-reversed"

RUN = f"""
import json
from pathlib import Path
from click.testing import CliRunner
from traincast.cli.main import cli

def call(*words):
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    return done.output if words[1] == "--help" else json.loads(done.stdout)["parallel"]["schedule"]

job = Path("job.toml")
job.write_text('''
[cluster]
name = "h100"
gpus = 8
[model]
name = "llama3-8b"
[parallel]
pp = 4
tp = 2
schedule = "{NAME}"
[batch]
seq_length = 512
global_batch = 8
''')
print(json.dumps([
    call("predict", "--help"),
    call("predict", str(job), "--json"),
    call("predict", str(job), "--schedule", "GPipe_Reversed", "--json"),
    call("simulate", r"{ROOT / "examples" / "aicb_scaled_512gpu.txt"}", "--vpp", "1", "--schedule", "{NAME}", "--json"),
]))
"""


@pytest.fixture
def added(monkeypatch):
    """Register the schedule as its file would be."""
    SCHEDULES.names()  # What comes with traincast is there before it.
    monkeypatch.setattr(SCHEDULES, "_entries", dict(SCHEDULES._entries))
    exec(compile(CODE, "gpipe_reversed.py", "exec"), {})  # noqa: S102 our own page
    return NAME


@pytest.mark.parametrize("stages", [1, 2, 5, 8])
def test_it_passes_the_conformance_suite(added, stages):
    conformance.test_plans_are_complete_executable_and_bounded(added, stages)
    conformance.test_plans_are_the_same_each_time(added)
    conformance.test_nothing_to_schedule_is_refused(added, (4, 0, 4))


@pytest.mark.slow
def test_one_file_is_enough(tmp_path):
    copied = tmp_path / "src" / "traincast"
    shutil.copytree(Path(traincast.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "schedules" / "gpipe_reversed.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    listed, *ran = json.loads(done.stdout)
    assert f"gpipe,{NAME},interleaved" in "".join(listed.split())
    assert ran == [NAME] * 3
