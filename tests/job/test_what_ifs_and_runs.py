"""What-ifs, failures and terms of whole runs as texts: what each stands for, and what is refused."""

import pytest

from traincast.errors import ConfigError
from traincast.job.changes import FieldEdit, WorkEdit, parse_change
from traincast.job.failures import Failures, parse_failures
from traincast.job.training_run import RunTerms, run_terms


@pytest.mark.parametrize(
    ("text", "edit", "shown"),
    [
        ("tp_comm*0.5", WorkEdit(work="tp_comm", factor=0.5), "tp_comm"),
        ("TP-Comm * 2", WorkEdit(work="tp_comm", factor=2), "tp_comm"),
        ("compute*0", WorkEdit(work="compute", factor=0), "compute"),
        ("compute*1e6", WorkEdit(work="compute", factor=1e6), "compute"),
        ("rank7.compute=peers", WorkEdit(work="compute", ranks=(7,), like="peers"), "rank7.compute"),
        ("Rank7,3,7.own=Peers", WorkEdit(work="own", ranks=(3, 7), like="peers"), "rank3,7.own"),
        ("stage3.backward*0.9", WorkEdit(work="backward", stages=(3,), factor=0.9), "stage3.backward"),
        ("stage1.compute=peers", WorkEdit(work="compute", stages=(1,), like="peers"), "stage1.compute"),
        ("compute=even", WorkEdit(work="compute", like="even"), "compute"),
        ("forward=balanced", WorkEdit(work="forward", like="balanced"), "forward"),
        ("comm=usual", WorkEdit(work="comm", like="usual"), "comm"),
        ("dp_comm=usual", WorkEdit(work="dp_comm", like="usual"), "dp_comm"),
        ("op:attn_fwd*0.8", WorkEdit(work="op:attn_fwd", factor=0.8), "op:attn_fwd"),
        ("op:a*b*0.8", WorkEdit(work="op:a*b", factor=0.8), "op:a*b"),
    ],
)
def test_changes_of_work_say_where_it_is_and_how_long_it_takes(text, edit, shown):
    found = parse_change(text)
    assert found == edit
    assert found.shown == shown


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("nic_bandwidth=800Gb/s", FieldEdit("nic_bandwidth", "800Gb/s")),
        (" cluster = h200 ", FieldEdit("cluster", "h200")),
        # The name of a field that has such a value.
        ("moe_routing=balanced", FieldEdit("moe_routing", "balanced")),
    ],
)
def test_changes_of_fields_keep_their_value_as_it_was_written(text, edit):
    assert parse_change(text) == edit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compute", "is not a change; write WORK"),
        ("*2", "is not a change"),
        ("=5", "is not a change"),
        ("=peers", "is not a change"),
        ("compute=", "is not a change"),
        ("compute*fast", "is not a factor from 0 to 1e"),
        ("compute*-0.1", "is not a factor"),
        ("compute*1000001", "is not a factor"),
        ("walking*2", "does not name any work"),
        ("compute=peers", "only work of some ranks or stages can be as on peers"),
        ("rank3.comm=peers", "only work of some ranks or stages"),
        ("rank3.tp_comm=peers", "only work of some ranks or stages"),
        ("walking=peers", "does not name any work"),
        ("compute=usual", "what is usual is communication"),
        ("tp_comm=even", "what is even is own work"),
        ("comm=balanced", "what is balanced is own work"),
    ],
)
def test_what_is_no_change_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_change(text)


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        ("", Failures()),
        ("default", Failures()),
        ("mtbf=50000h", Failures(mtbf_s=50000 * 3600)),
        ("Restart = 10min, checkpoint=30s,interval=1h", Failures(restart_s=600, checkpoint_s=30, interval_s=3600)),
        ("interval=optimal,detection=0s", Failures(detection_s=0)),
        ("default,,mtbf=1h", Failures(mtbf_s=3600)),
        ("mtbf=1s,interval=1ms", Failures(mtbf_s=1, interval_s=1e-3)),
    ],
)
def test_failures_are_read_by_name(text, failures):
    assert parse_failures(text) == failures


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mtbf", "is not NAME=TIME"),
        ("mean=5h", "is not NAME=TIME"),
        ("mtbf=1h,mtbf=2h", "mtbf is given twice"),
        ("interval=optimal,interval=1h", "interval is given twice"),
        ("mtbf=0s", "is 0 s; it must be above 0"),
        ("interval=0s", "is 0 s; it must be above 0"),
        ("restart=-1s", "is not a duration"),
    ],
)
def test_failures_that_cannot_be_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_failures(text)


def test_times_that_may_be_nothing_are():
    assert Failures(detection_s=0, restart_s=0, checkpoint_s=0).restart_s == 0
    with pytest.raises(ConfigError):
        Failures(detection_s=-1)


@pytest.mark.parametrize(
    ("refused", "taken", "message"),
    [
        ({"tokens": 0.0}, {"tokens": 1.0}, "tokens"),
        ({"tokens": 1e12, "currency": " "}, {"tokens": 1e12, "currency": "USD", "gpu_hour_price": 2.0}, "is empty"),
        ({"tokens": 1e12, "currency": "USD"}, {"tokens": 1e12}, "needs a price"),
        ({"tokens": 1e12, "gpu_hour_price": 0.0}, {"tokens": 1e12, "gpu_hour_price": 0.01}, "must be above 0"),
        ({"tokens": 1e12, "gpu_hour_price": -1.0}, {"tokens": 1e12, "gpu_hour_price": 1.0}, "gpu_hour_price"),
        ({"tokens": 1e12, "gpu_power_w": -1.0}, {"tokens": 1e12, "gpu_power_w": 700.0}, "gpu_power_w"),
        ({"tokens": 1e12, "pue": 0.9}, {"tokens": 1e12, "pue": 1.0}, "pue"),
        ({"tokens": 1e12, "grid_intensity": -1.0}, {"tokens": 1e12, "grid_intensity": 0.0}, "grid_intensity"),
        ({"gpu_power_w": 700.0}, {"gpu_power_w": 700.0, "tokens": 1e12}, "gpu_power_w: belongs to a whole run"),
        ({"pue": 1.1}, {}, "pue: belongs to a whole run"),
        ({"failures": "mtbf=0s"}, {"failures": "mtbf=1h"}, "above 0"),
    ],
)
def test_terms_of_a_run_end_where_they_must(refused, taken, message):
    RunTerms(**taken)
    with pytest.raises(ConfigError, match=message):
        RunTerms(**refused)


def test_terms_of_a_run_are_read_from_texts():
    assert RunTerms(tokens="15T").tokens == 15e12
    assert RunTerms(failures="restart=1min").failures == Failures(restart_s=60)
    assert RunTerms(failures=True).failures == Failures()
    assert RunTerms(failures=False).failures is None
    assert run_terms({"tokens": "1T", "failures": True}) == RunTerms(tokens=1e12, failures=Failures())
    with pytest.raises(ConfigError, match="unknown option 'token'"):
        run_terms({"token": 1e12})
    with pytest.raises(ConfigError, match="failures: belongs to a whole run"):
        run_terms({"failures": True})
