"""What every test runs under: hypothesis draws the same examples on every machine and in every run.

``pytest --hypothesis-profile=random --hypothesis-seed=N`` draws others.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# Tests run next to one another, on small matrices: threads of linear algebra would wait for each other. Before numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# No limits of time in either: machines are shared, and a test that fails at times is none.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **PATIENT)
settings.register_profile("random", print_blob=True, **PATIENT)
settings.load_profile("fixed")
# Thousands of tests that are collected stay till the end: nothing is gained by going through them again and again.
gc.disable()

COLLECTED = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Note which files have tests, before any test is left out."""
    config.stash[COLLECTED] = {item.path for item in items}


def pytest_collection_finish():
    """Look for what can be let go from now on, among what tests make only."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def collected_files(pytestconfig):
    """Return the files that tests of this run are in, also those that it leaves out by their names or marks."""
    return pytestconfig.stash[COLLECTED]
