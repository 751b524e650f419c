"""Files of other frameworks are told by their content, and forecast by their bare name."""

from pathlib import Path

import pytest

from traincast import api
from traincast.dialects.recognise import HUGGING_FACE, draft_of_file, draft_of_words, told_as
from traincast.errors import ConfigError, FormatError

RECIPES = Path(__file__).parents[1] / "dialects" / "recipes"
MODEL = ("--model", "llama3-8b", "--seq-length", "4096")
TOLD = {
    "meg1.sh": ("megatron", ()),
    "meg2.sh": ("megatron", ()),
    "meg3.txt": ("megatron", ("--gpus", "64")),
    "tt1.toml": ("torchtitan", ("--gpus", "256")),
    "tt2.toml": ("torchtitan", ("--gpus", "64", "--global-batch", "64")),
    "ds1.json": ("deepspeed", (*MODEL, "--gpus", "64", "--global-batch", "64", "--micro-batch", "1")),
    "ds2.json": ("deepspeed", (*MODEL, "--gpus", "64", "--global-batch", "512")),
    "acc1.yaml": ("accelerate", (*MODEL, "--gpus", "64", "--global-batch", "64", "--micro-batch", "1")),
    "br3.py": ("bridge", ("--gpus", "512")),
    "nemo2.py": ("nemo", ("--gpus", "32", "--seq-length", "4096")),
    "nemo3.yaml": ("nemo", ()),
    "hf1.json": (HUGGING_FACE, ("--gpus", "64", "--tp", "8", "--seq-length", "4096", "--global-batch", "64")),
    "hf2.json": (HUGGING_FACE, ("--gpus", "64", "--tp", "8", "--seq-length", "4096", "--global-batch", "64")),
}
"""What some files are told as, and what they leave open."""


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.iterdir()))
def test_every_recipe_is_told_by_its_content(name):
    prefixes = {"acc": "accelerate", "br": "bridge", "ds": "deepspeed", "hf": HUGGING_FACE, "meg": "megatron"}
    prefixes |= {"nemo": "nemo", "tt": "torchtitan"}
    assert told_as(RECIPES / name) == prefixes[name.partition(".")[0].rstrip("0123456789")]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_a_file_is_forecast_by_its_bare_name(name, call):
    like, further = TOLD[name]
    assert told_as(RECIPES / name) == like
    code, out, err = call("predict", RECIPES / name, "--cluster", "h100", "--allow-oom", "--no-suggest", *further)
    assert code == 0, err
    assert out.startswith("Step ")
    assert "taken as" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("like", "name", "further"),
    [
        ("megatron", "meg1.sh", ()),
        ("torchtitan", "tt1.toml", ("--gpus", "256")),
        ("deepspeed", "ds2.json", (*MODEL, "--gpus", "64", "--global-batch", "512")),
        ("nemo", "nemo3.yaml", ()),
    ],
)
def test_a_file_after_two_dashes_is_the_same_job(like, name, further, call):
    options = ("--cluster", "h100", "--allow-oom", "--no-suggest", *further)
    pasted = call("predict", "--like", like, *options, "--", RECIPES / name)
    bare = call("predict", RECIPES / name, *options)
    assert pasted[0] == bare[0] == 0
    assert pasted[1].splitlines()[0] == bare[1].splitlines()[0]


def test_a_script_stands_alone():
    with pytest.raises(ConfigError, match="give it alone"):
        draft_of_words("megatron", [str(RECIPES / "meg1.sh"), "--seq-length", "4096"], strict=False)


@pytest.mark.parametrize("name", ["meg1.sh", "tt1.toml", "ds1.json", "acc1.yaml", "nemo3.yaml", "br3.py", "hf1.json"])
def test_inspect_says_what_it_is(name):
    assert "predict takes it" in api.inspect(RECIPES / name).taken_by


@pytest.mark.slow
def test_plan_and_compare_take_them_too(tmp_path, call):
    given = ("--cluster", "h100", "--gpus", "32", "--seq-length", "4096", "--global-batch", "32")
    assert call("plan", RECIPES / "hf1.json", *given, "--max-pp", "1", "--quiet")[0] == 0
    words = ("--cluster", "h100", "--no-suggest", "--out", tmp_path / "run", "--quiet")
    assert call("predict", RECIPES / "nemo3.yaml", *words)[0] == 0
    code, out, err = call("compare", RECIPES / "nemo3.yaml", tmp_path / "run", "--cluster", "h100")
    assert code == 0, err
    assert "the same" in out.splitlines()[0]


@pytest.mark.parametrize("text", ["garbage\n", "a: 1\nb: 2\n", "step,loss\n1,2\n"])
def test_what_nobody_tells_is_refused_with_what_to_say(text, tmp_path):
    path = tmp_path / "some.txt"
    path.write_text(text)
    assert told_as(path) is None
    assert draft_of_file(path) is None
    with pytest.raises(FormatError, match="give like"):
        api.described(path)


def test_a_job_of_our_own_is_nobody_elses():
    assert all(told_as(path) is None for path in Path("examples").glob("*.toml"))
