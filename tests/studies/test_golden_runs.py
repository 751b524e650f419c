"""The judge of Megatron-LM's own tests: what it skips, and what it says of a row."""

import pytest

from judges import golden

ROW = {
    "id": "mg_small",
    "model_kind": "gpt",
    "gpu": "H100",
    "num_gpus": "8",
    "step_median_s": "0.1",
    "notes": "",
    "flags": "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 32 --bf16 --data-path ${DATA_PATH}/text",
}


def test_a_row_is_forecast_from_its_flags():
    found = golden.forecast(ROW)
    assert (found.accepted, found.skipped, found.measured_s) == (True, "", 0.1)
    assert 0.01 < found.step_s < 1
    longer = golden.forecast({**ROW, "flags": ROW["flags"].replace("--num-layers 4", "--num-layers 8")})
    assert longer.step_s > found.step_s


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"gpu": ""}, "its GPU is not known"),
        ({"num_gpus": ""}, "its number of GPUs is not known"),
        ({"notes": "batch ramp-up or schedule in the flags"}, "its batch grows"),
        ({"model_kind": "multimodal"}, "models of images"),
    ],
)
def test_what_says_nothing_of_a_forecast_is_skipped_with_its_reason(cells, words):
    found = golden.forecast({**ROW, **cells})
    assert found.accepted
    assert words in found.skipped


def test_flags_that_are_refused_count_as_such():
    found = golden.forecast({**ROW, "flags": f"{ROW['flags']} --perform-rl-step"})
    assert not found.accepted
    assert found.skipped.startswith("refused: ")
    assert "--perform-rl-step" in found.skipped


def test_boards_count_lines_and_steps(monkeypatch):
    judged = golden.forecast(ROW)
    refused = golden.Forecast(ROW, accepted=False, skipped="refused: so")
    monkeypatch.setattr(golden, "forecasts", lambda: (judged, judged, judged, refused))
    lines, steps, *others = golden.boards()
    assert (lines.rows, lines.figures["accepted"], lines.asked) == (4, 75.0, {"accepted": 97.0})
    assert (steps.rows, steps.asked) == (3, golden.ASKED)
    assert [each.name for each in others] == ["steps, H100", "steps, gpt"]
