"""What no job may say is refused in the same words by a forecast, a plan, and the points of either kind of sweep."""

from typing import get_args

import pytest

from traincast import api
from traincast.errors import InfeasibleError, TraincastError
from traincast.job.job_file import SECTIONS, draft_of_table
from traincast.job.request import JOB_FIELDS
from traincast.sweeps.points import Forecasts, Layouts
from traincast.sweeps.rows import row_without
from traincast.sweeps.spec import Point

PATH = "job.toml"
JOB = {
    "model": {"name": "llama3-8b"},
    "parallel": {"tp": 1, "pp": 1, "cp": 1, "zero": 1},
    "batch": {"seq_length": 512, "global_batch": 8, "micro_batch": 1},
    "cluster": {"name": "h100", "gpus": 8},
}


def takes_text(key):
    types = JOB_FIELDS[key].type
    return str in {each for one in (types, *get_args(types)) for each in (one, *get_args(one))}


TEXTS = [
    *(("model", "name"), ("cluster", "name")),
    *((section, key) for section, keys in SECTIONS.items() for key in keys if key != "name" and takes_text(key)),
]


def verdict(ask, job):
    """Return what `ask` says of a job, as a sweep writes it down."""
    try:
        ask(draft_of_table(job, PATH))
    except InfeasibleError as error:
        return row_without("infeasible", str(error))
    except TraincastError as error:
        return row_without("refused", str(error))
    return {"status": "ok"}


def verdicts(job):
    point = Point(0, (), job)
    return [
        verdict(api.predict, job),
        verdict(api.plan, job),
        *(kind(PATH, {})([point])[0] for kind in (Forecasts, Layouts)),
    ]


@pytest.mark.parametrize("place", [f"{section}.{key}" for section, key in TEXTS])
def test_odd_names_are_refused_alike(place):
    section, key = place.split(".")
    several = section not in ("model", "cluster") and "tuple" in str(JOB_FIELDS[key].type)
    for odd in ("", " ", "no such", "\n"):
        found = verdicts({**JOB, section: {**JOB.get(section, {}), key: [odd] if several else odd}})
        assert found[0]["status"] == "refused"
        assert found == [found[0]] * 4
