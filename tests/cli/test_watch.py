"""``traincast watch``: quiet while all is well, an alarm and an exit code where not."""

import json
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from traincast.cli.main import cli
from watch_logs import log_of, slower_log, steps_ms


def run(*arguments, **more):
    return CliRunner().invoke(cli, ["watch", *map(str, arguments)], **more)


@pytest.fixture
def slower(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(slower_log()) + "\n")
    return path


@pytest.fixture
def well(tmp_path):
    path = tmp_path / "well.log"
    path.write_text("\n".join(log_of(steps_ms(300))) + "\n")
    return path


def test_nothing_is_printed_while_all_is_well(well):
    result = run(well, "--once")
    assert (result.exit_code, result.output) == (0, "")


def test_a_slower_run_ends_with_4_and_says_since_when(slower):
    result = run(slower, "--once")
    assert result.exit_code == 4
    assert "level shift: slower by 5.7 % since step 150" in result.output


def test_alarms_are_lines_of_json(slower):
    (line,) = run(slower, "--once", "--json").output.splitlines()
    alarm = json.loads(line)
    assert alarm["schema"] == "traincast.alarm/1"
    assert {"kind", "began_step", "size", "confidence", "explained_by"} <= alarm.keys()


def test_nothing_is_written_next_to_the_log(slower):
    before = sorted(slower.parent.iterdir())
    run(slower, "--once", "--json")
    assert sorted(slower.parent.iterdir()) == before


def test_a_command_gets_each_alarm(slower, tmp_path):
    out = tmp_path / "alarm.json"
    result = run(slower, "--once", "--on-alarm", f'cat > {out}; test "$TRAINCAST_ALARM_KIND" = "level shift"')
    assert json.loads(out.read_text())["began_step"] == 150
    assert "exit code" not in result.output


def test_a_command_that_fails_does_not_end_the_watch(slower):
    result = run(slower, "--once", "--on-alarm", "exit 3")
    assert result.exit_code == 4
    assert "ended with exit code 3" in result.output


def test_metrics_are_complete_and_say_the_verdict(slower, tmp_path):
    out = tmp_path / "watch.prom"
    run(slower, "--once", "--openmetrics", out)
    text = out.read_text()
    assert text.endswith("# EOF\n")
    assert 'traincast_verdict="level shift"} 1' in text
    assert f'traincast_step{{log="{slower}"}} 220' in text


def test_a_log_without_steps_is_an_error(tmp_path):
    path = tmp_path / "other.log"
    path.write_text("nothing to see\n")
    result = run(path, "--once")
    assert result.exit_code == 1
    assert "no line tells the time of a step" in str(result.exception)


def test_standard_input_ends_when_it_is_closed():
    text = "\n".join(slower_log()) + "\n"
    done = subprocess.run(
        [sys.executable, "-m", "traincast.cli", "watch", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "since step 150" in done.stdout


@pytest.mark.slow
def test_a_log_is_followed_while_it_is_written(tmp_path):
    path = tmp_path / "run.log"
    lines = slower_log()
    path.write_text("\n".join(lines[:100]) + "\n")
    watch = subprocess.Popen(
        [sys.executable, "-m", "traincast.cli", "watch", str(path), "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        time.sleep(2)
        path.rename(tmp_path / "run.log.1")
        path.write_text("\n".join(lines[100:]) + "\n")
        assert json.loads(watch.stdout.readline())["began_step"] == 150
    finally:
        watch.terminate()
        watch.wait()
        watch.stdout.close()


def test_a_job_explains_an_alarm_by_its_forecasts(slower):
    result = run(slower, "--once", "--job", "examples/llama3_70b_512gpu.toml")
    assert result.exit_code == 4
    assert "its forecast is" in result.output


def test_a_job_that_cannot_be_read_is_said_at_once(slower):
    result = run(slower, "--once", "--job", "none.toml")
    assert result.output == ""
    assert "none.toml: cannot be read" in str(result.exception)
