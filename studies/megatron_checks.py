"""Ask Megatron Core itself whether it accepts a job: its own argument checks, which need no GPU.

`refusals(job)` builds what Megatron Core makes of a job, a `TransformerConfig`, an `OptimizerConfig` and a
`DistributedDataParallelConfig`, which refuse combinations as they are made, and returns what they say. What Megatron-LM
refuses elsewhere, in `validate_args` and where a step starts, is a table of rules with their sources
(`megatron_rules.csv`), which is asked whether Megatron Core is installed or not.

`pip install megatron-core==0.16.1 torch==2.13.0` is enough: Transformer Engine, which needs a GPU, is taken to be
there. A checkout of Megatron-LM before it on the path is asked instead (it needs Triton, too), and whether it takes the
flags that are written of the job (`megatron_flags.py`).
"""

import argparse
import csv
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import Struct

import traincast
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster
from traincast.job.condition_facts import job_facts
from traincast.job.conditions import Condition, broken, read_conditions
from traincast.job.job import Job
from traincast.job.job_file import read_job_file
from traincast.job.record import record_from_table
from traincast.job.resolve import resolve_job
from traincast.planning.answer import Plan

PINNED = "0.16.1"
"""Release of Megatron Core that CI asks: the newest of February 2026 that PyPI has."""
TRANSFORMER_ENGINE = "2.14.0"
"""Release of Transformer Engine that is taken to be installed."""
RULES = Path(__file__).parent / "megatron_rules.csv"


class Rule(Struct, frozen=True):
    """What Megatron-LM refuses in other places than its configurations."""

    when: tuple[Condition, ...]
    """Conditions of the jobs that it is about."""
    must: tuple[Condition, ...]
    """What must hold of them."""
    says: str
    """Its message."""
    source: str


def read_rules(rows: Iterable[Mapping[str, str]]) -> tuple[Rule, ...]:
    """Return the rules of a table."""
    return tuple(
        Rule(read_conditions(row["when"], "when"), read_conditions(row["must"], "must"), row["says"], row["source"])
        for row in rows
    )


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules of `megatron_rules.csv`."""
    with RULES.open(newline="") as file:
        return read_rules(csv.DictReader(file))


@contextmanager
def quietly() -> Iterator[None]:
    """Leave out the warnings of what is imported and asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def release() -> str | None:
    """Return the release of Megatron Core that is installed; None: none, and only the rules are asked."""
    with quietly():
        try:
            import megatron.core
            import megatron.core.distributed
            import megatron.core.optimizer
            import megatron.core.transformer.moe.moe_utils
        except ImportError:
            return None
    return str(megatron.core.__version__)


def refusals(job: Job, cluster: Cluster | None = None) -> list[str]:
    """Return what Megatron-LM and Megatron Core say against a job, each with who says it; empty: they accept it."""
    found = [f"{rule.source}: {rule.says}" for rule in rules() if breaks(rule, rule_facts(job, cluster))]
    if release() is None:
        return found
    from megatron_flags import flag_refusals

    found += _of_configurations(job)
    return found if cluster is None else [*found, *flag_refusals(job, cluster)]


def breaks(rule: Rule, facts: Mapping[str, Any]) -> bool:
    """Say whether a job breaks a rule."""
    return broken(rule.when, facts) is None and broken(rule.must, facts) is not None


def rule_facts(job: Job, cluster: Cluster | None) -> dict[str, Any]:
    """Return what rules ask about: facts of conditions, and remainders that must be 0."""
    parallel = job.parallel
    return job_facts(job, cluster) | {
        "microbatches_left": parallel.microbatches % parallel.pp,
        "tokens_left": job.batch.seq_length % (2 * parallel.cp),
        "sends_with_layers": job.pipeline.overlap_p2p,
        "experts_everywhere": all(map(job.model.has_experts, range(job.model.layers))),
        "gathers_once": job.sharding.zero == 3 and not job.sharding.reshard_after_forward,
    }


def unknown(job: Job) -> list[str]:
    """Return the settings of a job that the installed Megatron Core does not have: it is older than they are."""
    if release() is None:
        return []
    kinds = _kinds(job)
    return sorted(name for kind, said in kinds for name, value in said.items() if value and name not in _names(kind))


def _of_configurations(job: Job) -> list[str]:
    """Return what the configurations of Megatron Core say as they are made.

    One with settings that are newer than the release says nothing: another release would run the job, whose rules are
    in the table.
    """
    found = []
    for kind, said in _kinds(job):
        known = {name: value for name, value in said.items() if name in _names(kind)}
        if any(value for name, value in said.items() if name not in known):
            continue
        try:
            with transformer_engine(), quietly():
                kind(**known)
        except (AssertionError, ValueError, RuntimeError, NotImplementedError, ImportError) as error:
            found.append(f"megatron-core {release()}, {kind.__name__}: {' '.join(str(error).split())}")
    return found


def _names(kind: type[Any]) -> set[str]:
    return {each.name for each in fields(kind)}


def _kinds(job: Job) -> list[tuple[type[Any], dict[str, Any]]]:
    """Return the configurations that Megatron Core makes of a job, and what each is told."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    from megatron_settings import optimizer_settings, replica_settings, transformer_settings

    transformer = TransformerConfig if job.model.attention.latent is None else MLATransformerConfig
    return [
        (transformer, transformer_settings(job, by_modules="cuda_graph_modules" in _names(TransformerConfig))),
        (OptimizerConfig, optimizer_settings(job)),
        (DistributedDataParallelConfig, replica_settings(job)),
    ]


@contextmanager
def transformer_engine() -> Iterator[None]:
    """Take Transformer Engine to be there, where Megatron Core asks for its release or for a kernel of it."""
    from megatron.core import utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    class FusedAdam:
        """Has the parameters of Transformer Engine's."""

        def __init__(
            self,
            master_weight_dtype: object = None,
            exp_avg_dtype: object = None,
            exp_avg_sq_dtype: object = None,
            use_decoupled_grad: bool = False,
        ) -> None: ...

    optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    names = ("transformer_engine", "transformer_engine.pytorch")
    stand_ins = {name: types.ModuleType(name) for name in names} | {optimizers.__name__: optimizers}
    what = ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs", "unpermute")
    fused: dict[str, Any] = {f"fused_{name}": object() for name in what}
    with (
        patch.dict(sys.modules, stand_ins),
        patch.object(utils, "_te_version", Version(TRANSFORMER_ENGINE)),
        patch.multiple(moe_utils, create=True, **fused),
    ):
        yield


def of_plan(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Yield each layout that a plan proposes, in a line, with what is said against the job that was forecast of it."""
    for each in plan.best:
        record = record_from_table(each.result.run or {}, (), each.layout.text)
        if record.job is not None:
            job = record.job if isinstance(record.job, Job) else resolve_job(record.job, record.cluster)
            yield each.layout.text, refusals(job, record.cluster)


def main() -> int:
    """Print what is said against the jobs of some files, or against what plans of them propose; 1 where anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", metavar="JOB.toml")
    parser.add_argument("--plan", action="store_true", help="ask of the layouts that are planned for the jobs")
    options = parser.parse_args()
    asked = "the rules alone" if release() is None else f"megatron-core {release()} and the rules"
    found: list[tuple[str, list[str]]] = []
    for path in options.jobs:
        if options.plan:
            found += ((f"{path}, {layout}", said) for layout, said in of_plan(traincast.plan(path)))
            continue
        draft = read_job_file(path)
        cluster = draft.cluster if isinstance(draft.cluster, Cluster) else load_cluster(draft.cluster or "h100")
        job = resolve_job(draft.request(), cluster)
        found.append((path, refusals(job, cluster)))
        if missing := unknown(job):
            print(f"{path}: megatron-core {release()} is older than {', '.join(missing)}, so that the rules alone say")
    for what, said in found:
        print(f"{what}: {'; '.join(said) or f'accepted by {asked}'}")
    return int(any(said for _, said in found))


if __name__ == "__main__":
    sys.exit(main())
