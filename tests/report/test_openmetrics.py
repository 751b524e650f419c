"""What a monitor reads of a watched run."""

import re

from traincast.checking.watching import Watch
from traincast.report.openmetrics import open_metrics
from watch_logs import slower_log

SAMPLE = re.compile(r'[a-z_]+\{log="(?:[^"\\]|\\.)*"(?:,[a-z_]+="[^"]*")?\} (?:NaN|[-+.\de]+)')


def samples(watch, log="run.log"):
    *lines, end = open_metrics(watch.state(), log).splitlines()
    assert end == "# EOF"
    return [line for line in lines if not line.startswith("#")]


def test_every_line_is_a_sample_also_before_the_first_step():
    watch = Watch("run.log")
    for name in ("run.log", 'odd "name"\\of\na log'):
        assert all(SAMPLE.fullmatch(line) for line in samples(watch, name))


def test_one_verdict_holds_and_it_is_the_last_alarm():
    watch = Watch("run.log")
    alarms = [alarm for line in slower_log() for alarm in watch.feed(line)]
    verdicts = [line for line in samples(watch) if line.startswith("traincast_verdict{") and line.endswith(" 1")]
    assert len(alarms) == len(verdicts) == 1
    assert alarms[0].kind in verdicts[0]


def test_what_is_usual_lies_within_what_is_expected():
    watch = Watch("run.log")
    for line in slower_log(at=10_000):
        watch.feed(line)
    state = watch.state()
    assert state.low_s < state.usual_s < state.high_s
    assert state.verdict == "well"
