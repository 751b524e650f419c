"""A forecast says in its first lines whether it fits; a limit on the chance that it does not refuses it."""

import json
import re

import pytest
from msgspec.structs import replace

from traincast import api
from traincast.cli.main import main
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.memory import chance_of_oom
from traincast.simulation.memory_risk import MemoryRisk, checked_oom_risk, memory_risk

GIB = 2**30
JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "global_batch": 16, "seq_length": 8192}


@pytest.fixture(scope="module")
def result():
    return api.predict(**JOB, pp=2, zero=0, allow_oom=True, options=api.StepOptions())


def test_the_verdict_is_said_as_sure_as_it_is():
    words = ["fits:", "may not fit:", "does not fit:", "does not fit, over by"]
    found = []
    for peak in range(20, 400, 2):
        chance = chance_of_oom(peak * GIB, 79 * GIB)
        risk = MemoryRisk(stage=0, peak_bytes=peak * GIB, usable_bytes=79 * GIB, chance_of_oom=chance)
        assert re.fullmatch(
            rf"{peak}\.0 of 79\.0 GiB usable; "
            rf"((fits|may not fit|does not fit): (below 1|\d\d?) % chance of running out|does not fit, over by .* GiB)",
            risk.text,
        )
        said = [words.index(word) for word in words if word in risk.text]
        found.append(said[0])
        assert (said[0] == 3) == (chance > 0.99)
    assert found == sorted(found)
    assert set(found) == {0, 1, 2, 3}


def test_the_stage_that_needs_most_decides(result):
    risk = memory_risk(result)
    peaks = [each.peak for each in result.memory_bytes]
    assert risk.peak_bytes == max(peaks) == peaks[risk.stage]
    assert memory_risk(replace(result, memory_bytes=None)) is None
    old = tuple(replace(each, usable=None, chance_of_oom=None) for each in result.memory_bytes)
    assert memory_risk(replace(result, memory_bytes=old)) is None


def test_a_limit_refuses_what_is_above_it_alone(result):
    chance = memory_risk(result).chance_of_oom
    assert checked_oom_risk(result, chance) is checked_oom_risk(result, None) is result
    with pytest.raises(InfeasibleError, match=r"above the \d+(\.\d+)? % that is allowed: stage \d needs") as refused:
        checked_oom_risk(result, 0.99 * chance)
    assert refused.value.needed_bytes == memory_risk(result).peak_bytes
    with pytest.raises(ConfigError, match="from 0 to 1"):
        checked_oom_risk(result, 1.5)
    assert refused.value.limit_bytes == memory_risk(result).usable_bytes


@pytest.mark.parametrize(("limit", "wanted"), [("0", 3), ("1", 0), ("2", 2)])
def test_the_command_fails_above_the_limit(limit, wanted, capsys):
    words = [word for name, value in JOB.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with pytest.raises(SystemExit) as ended:
        main(["predict", *words, "--tp", "2", "--fail-on-oom-risk", limit, "--no-suggest", "--json"])
    assert ended.value.code == wanted
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == ("traincast.error/1" if wanted else "traincast.result/1")
    assert wanted != 3 or document["needed"] > 0


def test_memory_stands_in_the_first_block(capsys):
    with pytest.raises(SystemExit):
        words = [word for name, value in JOB.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        main(["predict", *words, "--no-suggest", "--allow-oom"])
    first, _, _ = capsys.readouterr().out.partition("Where the time goes")
    assert re.search(r"^  memory +\d+\.\d of 79\.1 GiB usable; ", first, re.MULTILINE)
