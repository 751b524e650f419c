"""Ask torchtitan itself whether it accepts a job: what is written of it is read by its own configuration manager.

`refusals(job)` hands torchtitan the settings that traincast writes of a job, and its degrees to what checks them there;
what it refuses as it builds the model is a table of rules with their sources
(`torchtitan_rules.csv`), which is asked whether torchtitan is installed or not.

`pip install --no-deps torchtitan==0.2.2`, and torch==2.13.0, tyro, tomli and tokenizers, are enough.
"""

import csv
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from megatron_checks import Rule, breaks, read_rules, rule_facts
from traincast.dialects.torchtitan_writing import torchtitan_text
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job

PINNED = "0.2.2"
"""Release of torchtitan that CI asks."""
RULES = Path(__file__).parent / "torchtitan_rules.csv"
NAMES = ("torchtitan-2025", "torchtitan-eager-2024")
"""Frameworks that are torchtitan."""


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of `torchtitan_rules.csv`."""
    with RULES.open(newline="") as file:
        return read_rules(csv.DictReader(file))


@cache
def installed() -> bool:
    """Say whether torchtitan's configuration can be asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchtitan.config
            import torchtitan.distributed.parallel_dims  # noqa: F401
        except ImportError:
            return False
    return True


def refusals(job: Job, cluster: Cluster | None = None) -> list[str]:
    """Return what torchtitan says against a job, each with who says it; empty: it accepts it."""
    facts = rule_facts(job, cluster) | {"tokens_left": job.batch.seq_length % (2 * job.parallel.cp * job.parallel.tp)}
    found = [f"{rule.source}: {rule.says}" for rule in rules() if breaks(rule, facts)]
    return [*found, *_of_configuration(job)] if installed() else found


def _of_configuration(job: Job) -> list[str]:
    """Return what torchtitan's configuration says of the settings that are written, and of its degrees."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(torchtitan_text(job))
        try:
            said: Any = ConfigManager().parse_args(["--job.config_file", str(path)]).parallelism
            ParallelDims(
                dp_replicate=said.data_parallel_replicate_degree,
                dp_shard=said.data_parallel_shard_degree,
                cp=said.context_parallel_degree,
                tp=said.tensor_parallel_degree,
                pp=said.pipeline_parallel_degree,
                ep=said.expert_parallel_degree,
                etp=said.expert_tensor_parallel_degree,
                world_size=job.parallel.world_size,
            )
        except (AssertionError, ValueError, TypeError, SystemExit) as error:
            return [f"torchtitan {PINNED}: {' '.join(str(error).split())}"]
    return []
