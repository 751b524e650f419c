"""What the tests of checks need."""

import pytest

from traincast.checking.base import base_of
from traincast.hardware.clusters import load_cluster
from traincast.job.words import said_of_job
from traincast.simulation.step import Setting

JOB = {
    "model": "llama3-8b",
    "gpus": 16,
    "tp": 2,
    "pp": 2,
    "global_batch": 16,
    "seq_length": 4096,
    "framework": "megatron-core-2026",
}


@pytest.fixture(scope="session")
def base():
    """A small job on two nodes of H100, forecast."""
    return base_of(said_of_job(JOB), Setting(cluster=load_cluster("h100")))
