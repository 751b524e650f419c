"""``traincast check``."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TODAY, GOOD = ROOT / "examples" / "check" / "today.log", ROOT / "examples" / "check" / "last_good.log"


@pytest.fixture
def check(call):
    """Run ``check`` (see `call`), without looking for causes."""
    return lambda *words: call("check", "--no-causes", *words)


def test_a_run_that_is_as_expected_ends_with_zero_and_says_what_it_rests_on(check):
    code, out, err = check(GOOD, "--cluster", "h100")
    assert (code, err) == (0, "")
    assert out.startswith("as expected: the step is 1.94 s")
    assert "left out: 2 of warm-up, 2 of spike" in " ".join(out.split())


def test_a_slower_run_ends_with_four_and_is_told_in_one_line(check):
    code, out, _ = check(TODAY, "--baseline", GOOD, "--cluster", "h100", "--quiet")
    assert code == 4
    assert out.startswith("slower: ")
    assert out.count("\n") == 1


def test_what_is_longer_than_allowed_within_the_interval_cannot_be_told(check):
    code, out, _ = check(TODAY, "--baseline", GOOD, "--cluster", "h100", "--fail-above", "3%", "--quiet")
    assert (code, out.partition(":")[0]) == (5, "cannot tell")
    assert check(TODAY, "--baseline", GOOD, "--cluster", "h100", "--fail-above", "0.2", "--quiet")[0] == 0


def test_junit_fails_where_the_step_is_slower(check, tmp_path):
    file = tmp_path / "check.xml"
    for log, tag in ((TODAY, "failure"), (GOOD, "system-out")):
        check(log, "--baseline", GOOD, "--cluster", "h100", "--junit", file, "--quiet")
        suite = ElementTree.fromstring(file.read_text()).find("testsuite")  # noqa: S314 our own file
        assert suite.get("failures") == str(int(tag == "failure"))
        assert suite.find(f"testcase/{tag}") is not None


def test_annotations_are_one_command_and_a_report(check):
    _, out, _ = check(TODAY, "--baseline", GOOD, "--cluster", "h100", "--format", "github")
    assert out.startswith("::error file=")
    assert out.count("\n") == 1
    _, out, _ = check(TODAY, "--baseline", GOOD, "--cluster", "h100", "--format", "gitlab")
    (entry,) = json.loads(out)
    assert entry["severity"] == "major"
    assert entry["location"]["path"].endswith("today.log")
    _, out, _ = check(GOOD, "--cluster", "h100", "--format", "gitlab")
    assert json.loads(out) == []


def test_the_job_may_be_a_file_a_result_pasted_flags_or_options(check, call, tmp_path):
    job = ["--model", "llama3-8b", "--gpus", "64", "--tp", "2", "--pp", "2", "--global-batch", "128"]
    job += ["--seq-length", "8192", "--cluster", "h100"]
    call("predict", *job, "--out", tmp_path, "--quiet", "--no-suggest")
    by_options = json.loads(check(GOOD, *job, "--json")[1])
    by_result = json.loads(check(GOOD, "--job", tmp_path, "--json")[1])
    assert by_options["expected"] == by_result["expected"]
    flags = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 --micro-batch-size 1"
    flags += " --global-batch-size 128 --tensor-model-parallel-size 2 --vocab-size 128256"
    code, out, err = check(
        GOOD, "--cluster", "h100", "--gpus", "64", "--like", "megatron", "--json", "--", *flags.split()
    )
    assert err == ""
    assert json.loads(out)["exit_code"] == code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a log"),
        ((GOOD, "--between", GOOD, GOOD), "takes no log"),
        (("--between", GOOD, GOOD, "--recipe", "any"), "names both jobs"),
        ((GOOD, "--json", "--format", "github"), "two documents"),
        ((GOOD, "--fail-above", "much"), "write a share"),
        ((GOOD, "--like", "megatron"), "pasted flags"),
        ((GOOD, "--", "--num-layers", "2"), "--like megatron"),
    ],
)
def test_wrong_usage_is_told(call, words, says):
    code, _, err = call("check", *words)
    assert code == 2
    assert says in " ".join(err.split())


def test_a_file_that_is_no_log_is_one_message(call, tmp_path):
    (tmp_path / "nothing.log").write_text("hello\n")
    code, out, err = call("check", tmp_path / "nothing.log", "--cluster", "h100")
    assert (code, out) == (1, "")
    assert err.count("error:") == 1


def test_what_pipelines_run_says_options_that_there_are(call):
    known = call("check", "--help")[1]
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = (ROOT / "examples" / "ci" / "check.sh").read_text()
    for option in (
        "--job",
        "--baseline",
        "--between",
        "--cluster",
        "--fail-above",
        "--junit",
        "--format",
        "--no-causes",
    ):
        assert option in known
        assert option in script
    (step,) = [each for each in action["runs"]["steps"] if each.get("id") == "check"]
    assert all(f"${{{name}:-" in script for name in step["env"])
    for name in ("github.yml", "gitlab.yml"):
        assert yaml.safe_load((ROOT / "examples" / "ci" / name).read_text())
