"""Layers that stay wider where others run in 4 or 8 bits: those of Nemotron 3, and what of it is told."""

import pytest

from traincast.hardware.clusters import load_cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.job.share import blocks_of_layer, rank_share
from traincast.lowering.casts import casts_of
from traincast.model.load import load_model
from traincast.model.structure import mtp_blocks, parts_of

SUPER = load_model("nemotron-3-super")


def job_of(precision, **fields):
    request = {"gpus": 64, "ep": 64, "seq_length": 8192, "micro_batch": 1, "global_batch": 64, "precision": precision}
    return resolve_job(JobRequest(model=SUPER, **(request | fields)), load_cluster("gb300"))


def types(job, blocks):
    """Return the type of each part's GEMMs."""
    return {part.name: gemm.dtype for part in parts_of(blocks, rank_share(job)) for gemm in part.gemms}


@pytest.mark.parametrize(("precision", "attention", "mixer"), [("nvfp4", "bf16", "mxfp8"), ("mxfp8", "mxfp8", "mxfp8")])
def test_what_stays_wider_with_four_bits(precision, attention, mixer):
    job = job_of(precision)
    found = {}
    for layer in range(1, 12):
        found |= types(job, blocks_of_layer(job, layer))
    kept = ("linear_qkv", "linear_proj", "fc1_latent_proj", "fc2_latent_proj")
    assert [dtype for name, dtype in found.items() if name.endswith(kept)] == [attention] * len(kept)
    assert (found["mixer.out_proj"], found["mixer.in_proj"]) == (mixer, precision)
    assert found["mlp.experts.linear_fc1"] == precision


def test_the_last_layers_stay_in_sixteen_bits_with_four_and_it_is_said():
    job = job_of("nvfp4")
    wide = [layer for layer in range(SUPER.layers) if "bf16" in types(job, blocks_of_layer(job, layer)).values()]
    assert {0, *range(SUPER.layers - 14, SUPER.layers)} <= {*wide}
    assert set(types(job, blocks_of_layer(job, SUPER.layers - 14)).values()) == {"bf16"}
    assert "nvfp4" in types(job, blocks_of_layer(job, SUPER.layers - 15)).values()
    assert [note for note in job.assumptions if note.code == "assumed-wide-layers"]
    assert not [note for note in job_of("mxfp8").assumptions if note.code == "assumed-wide-layers"]
    none = job_of("nvfp4", bf16_first_last=False)
    assert "nvfp4" in types(none, blocks_of_layer(none, SUPER.layers - 2)).values()


def test_mtp_layers_stay_in_sixteen_bits():
    assert set(types(job_of("mxfp8"), mtp_blocks(SUPER)).values()) == {"bf16"}


def test_a_gemm_of_another_type_has_the_casts_of_that():
    job = job_of("nvfp4")
    share = rank_share(job)
    gemms = {part.name: part.gemms[0] for part in parts_of(blocks_of_layer(job, 2), share) if part.gemms}
    assert {kernel.dtype for kernel in casts_of(gemms["mixer.out_proj"], share, trained=True).forward} == {"mxfp8"}
    assert {kernel.dtype for kernel in casts_of(gemms["mixer.in_proj"], share, trained=True).forward} == {"nvfp4"}
