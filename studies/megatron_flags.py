"""Ask Megatron-LM whether it takes the flags that traincast writes of a job: its parser, `validate_args`, and configs.

A checkout of Megatron-LM must be before Megatron Core on the path, since no package has `megatron.training`::

    PYTHONPATH=Megatron-LM:src:studies python studies/megatron_checks.py JOB.toml...

No GPU is needed: that of the cluster is taken to be there, and Transformer Engine.
"""

import argparse
import contextlib
import importlib
import io
import os
import shlex
import typing
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

from packaging.version import Version

from megatron_checks import TRANSFORMER_ENGINE, quietly, transformer_engine
from traincast.dialects.megatron_writing import megatron_text
from traincast.hardware.cluster import Cluster
from traincast.job.job import Job


@cache
def arguments() -> ModuleType | None:
    """Return `megatron.training.arguments`; None where no checkout is on the path."""
    with quietly(), patch.object(typing, "override", lambda method: method, create=True):
        try:
            return importlib.import_module("megatron.training.arguments")
        except ImportError:
            return None


def flag_refusals(job: Job, cluster: Cluster) -> list[str]:
    """Return what Megatron-LM says against the flags of a job; empty: it accepts them, or there is no checkout."""
    module = arguments()
    if module is None:
        return []
    lines = [line for line in megatron_text(job).splitlines() if not line.startswith("#")]
    words = [word for line in lines for word in shlex.split(line)]
    said = io.StringIO()
    try:
        with _as_on(cluster, job, module), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parser = argparse.ArgumentParser(allow_abbrev=False)
            module.add_megatron_arguments(parser)
            args = parser.parse_args([*_model_words(job), *words])
            args.world_size, args.rank = job.parallel.world_size, 0
            module.validate_args(args)
            module.core_transformer_config_from_args(args)
    except (AssertionError, ValueError, RuntimeError, NotImplementedError) as error:
        return [f"Megatron-LM: {' '.join(str(error).split())}"]
    except SystemExit:
        return [f"Megatron-LM: {said.getvalue().strip().splitlines()[-1]}"]
    return []


@contextlib.contextmanager
def _as_on(cluster: Cluster, job: Job, module: ModuleType) -> typing.Iterator[None]:
    """Take the GPU of a cluster and Transformer Engine to be there."""
    import torch
    from megatron.core.models.common.embeddings import rope_utils

    capability = int(cluster.gpu.generation.capability or 0)
    in_turn = capability < 10 and (job.parallel.tp > 1 or job.parallel.cp > 1) and job.sharding.zero < 2
    fused: dict[str, Any] = {"fused_apply_rotary_pos_emb": object(), "fused_apply_rotary_pos_emb_thd": object()}
    environment = {"WORLD_SIZE": str(job.parallel.world_size), "CUDA_DEVICE_MAX_CONNECTIONS": "1" if in_turn else "32"}
    with (
        quietly(),
        transformer_engine(),
        patch.dict(os.environ, environment | {"NVTE_CPU_OFFLOAD_V1": "1"}),
        patch.object(torch.cuda, "get_device_capability", lambda *_: (capability, 0)),
        patch.object(module, "get_device_arch_version", lambda: capability),
        patch.object(module, "is_te_min_version", lambda least, **_: Version(TRANSFORMER_ENGINE) >= Version(least)),
        patch.multiple(rope_utils, create=True, **fused),
    ):
        yield


def _model_words(job: Job) -> list[str]:
    """Return flags of the model, of its data and of its training, which traincast does not write."""
    model, attention, experts = job.model, job.model.attention, job.model.experts
    latent = attention.latent is not None
    said: dict[str, object] = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "num-attention-heads": attention.heads,
        "ffn-hidden-size": model.ffn_hidden,
        "kv-channels": attention.head_dim,
        "max-position-embeddings": job.batch.seq_length,
        "position-embedding-type": "rope",
        "vocab-size": model.vocab - 1,
        "tokenizer-type": "NullTokenizer",
        "attention-dropout": 0.1 if job.kernels.dropout else 0,
        "hidden-dropout": 0.1 if job.kernels.dropout else 0,
        "lr": 1e-4,
        "train-iters": 10,
    }
    if attention.kv_heads != attention.heads and not latent:
        said["num-query-groups"] = attention.kv_heads
    if experts is not None:
        said |= {"num-experts": experts.experts, "moe-ffn-hidden-size": experts.ffn_hidden}
        said |= {"moe-router-topk": experts.topk, "moe-router-dtype": "fp32"}
        said |= {"moe-shared-expert-intermediate-size": experts.shared_ffn_hidden} if experts.shared_ffn_hidden else {}
        said |= {"moe-router-load-balancing-type": "aux_loss"}
    said |= {"mtp-num-layers": model.mtp_layers} if model.mtp_layers else {}
    on = ["mock-data", "untie-embeddings-and-output-weights"]
    on += [] if model.linear_bias else ["disable-bias-linear"]
    on += ["add-qkv-bias"] if attention.qkv_bias else []
    on += ["swiglu"] if model.gated else []
    on += ["group-query-attention"] if "num-query-groups" in said else []
    on += ["multi-latent-attention"] if latent else []
    on += ["moe-router-pre-softmax"] if experts is not None and experts.topk == 1 else []
    return [
        *(word for name, value in said.items() for word in (f"--{name}", str(value))),
        *(f"--{name}" for name in on),
    ]
