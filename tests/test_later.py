"""Fields of a result that are worked out when they are first read."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import Struct
from msgspec.structs import replace

import traincast
from traincast.later import later, readable
from traincast.report.json import to_json
from traincast.simulation.result import Result

JOB = {"model": "llama3-8b", "cluster": "h100", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 16, "seq_length": "4k"}


class Told(Struct, frozen=True, kw_only=True):
    name: str = "told"
    value: list[int] | None = None


readable(Told, "value")


def unread(result):
    """Return the fields that nobody has read yet."""
    fields = [name for name in Result.__struct_fields__ if type(vars(Result)[name]).__name__ == "_Readable"]
    held = {name: vars(Result)[name]._slot.__get__(result) for name in fields}
    return {name for name, each in held.items() if getattr(each, "_make", None) is not None}


def test_a_value_is_worked_out_once_and_when_it_is_read():
    runs = []
    told = Told(value=later(lambda: runs.append(1) or [1, 2]))
    again = replace(told, name="again")
    assert not runs
    assert told.value == [1, 2] == again.value
    assert told.value is told.value is again.value
    assert len(runs) == 1
    assert Told(value=[3]).value == [3]
    assert Told().value is None


def test_what_a_value_is_worked_out_from_is_let_go():
    class Source:
        pass

    source = Source()
    alive, told = weakref.ref(source), Told(value=later(lambda source=source: [id(source)]))
    del source
    assert alive() is not None
    assert told.value is not None
    gc.collect()
    assert alive() is None


def test_a_failure_is_not_kept():
    answers = iter([ValueError("not yet"), [7]])

    def value():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    told = Told(value=later(value))
    with pytest.raises(ValueError, match="not yet"):
        _ = told.value
    assert told.value == [7]


def test_a_forecast_says_the_same_whoever_reads_it_first():
    result, other = traincast.predict(**JOB), traincast.predict(**JOB)
    assert {"breakdown_s", "ranks", "interval", "analysis", "assumptions"} <= unread(result)
    backwards = {name: getattr(other, name) for name in reversed(Result.__struct_fields__)}
    assert to_json(result) == to_json(other)
    assert all(getattr(result, name) == value for name, value in backwards.items() if name != "timed")
    assert not unread(result)


def test_a_pickle_and_a_copy_hold_values():
    result = traincast.predict(**JOB)
    document = to_json(traincast.predict(**JOB))
    sent = pickle.loads(pickle.dumps(result))  # noqa: S301 our own
    for other in (sent, copy.deepcopy(traincast.predict(**JOB))):
        assert not unread(other)
        assert to_json(other) == document
    assert to_json(copy.copy(traincast.predict(**JOB))) == document


@pytest.mark.slow
def test_threads_that_read_at_the_same_time_find_the_same():
    document, result = to_json(traincast.predict(**JOB)), traincast.predict(**JOB)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: to_json(result), range(8))) == {document}


def test_a_row_of_a_sweep_works_out_no_explanation():
    result = traincast.predict(**JOB)
    assert result.interval is not None
    assert result.interval.low_s < result.iteration_time_s
    assert {"analysis", "ranks", "parts", "breakdown_s"} <= unread(result)
