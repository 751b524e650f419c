"""Recipes in Python: what is read of variables, parameters and calls, and what is warned of."""

import pytest

from traincast.dialects.python_settings import read_python

SCRIPT = """
import nemo_run as run
from nemo.collections import llm
NODES = 4
CP: int = 2
def configure_recipe(nodes: int = 1, gpus_per_node=1, *, name="x"):
    recipe = llm.llama3_8b.pretrain_recipe(dir="/c", name=name, num_nodes=nodes, num_gpus_per_node=gpus_per_node)
    recipe.trainer.strategy.context_parallel_size = CP
    recipe.data.global_batch_size = BATCH
    return recipe
"""


def read(tmp_path, text):
    path = tmp_path / "run.py"
    path.write_text(text)
    return read_python(path)


def test_variables_and_parameters_are_what_they_are_given(tmp_path):
    found = read(tmp_path, SCRIPT + "BATCH = 256\nr = configure_recipe(NODES, gpus_per_node=8)\n")
    assert found.recipe == "llama3_8b_pretrain_recipe"
    assert found.settings == {
        "recipe.dir": "/c",
        "recipe.name": "x",
        "recipe.num_nodes": "4",
        "recipe.num_gpus_per_node": "8",
        "trainer.strategy.context_parallel_size": "2",
        "data.global_batch_size": "256",
    }
    assert not found.warnings


def test_a_function_that_the_script_does_not_call_has_its_defaults(tmp_path):
    found = read(tmp_path, SCRIPT + "BATCH = 8\n")
    assert found.settings["recipe.num_nodes"] == "1"


@pytest.mark.parametrize(
    "more",
    [
        "BATCH = 128\nBATCH = 256\n",
        "BATCH = NODES * 64\n",
        "BATCH = 64\nBATCH *= 2\n",
        "for BATCH in (64, 128):\n    pass\n",
        "BATCH = BATCH\n",
        "",
    ],
)
def test_what_stands_for_no_one_value_is_warned_of_and_not_read(tmp_path, more):
    found = read(tmp_path, SCRIPT + more)
    assert "data.global_batch_size" not in found.settings
    (warning,) = found.warnings
    assert "data.global_batch_size = BATCH is not a plain value" in warning.text
    assert warning.place.endswith("run.py:9")


def test_two_calls_that_differ_leave_it_open(tmp_path):
    found = read(tmp_path, SCRIPT + "BATCH = 8\na = configure_recipe(2)\nb = configure_recipe(4)\n")
    assert "recipe.num_nodes" not in found.settings
    assert [each.text for each in found.warnings] == [
        "recipe.num_nodes = nodes is not a plain value and is not read; write the value"
    ]
