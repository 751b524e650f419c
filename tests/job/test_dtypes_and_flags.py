"""Types have their bytes in one place; every option has the name of its flag."""

import pytest

from traincast.errors import UnknownNameError
from traincast.hardware.dtypes import bytes_per_element
from traincast.job.flags import flag_of
from traincast.job.options import LayoutOptions


@pytest.mark.parametrize(("dtype", "size"), [("fp64", 8), ("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)])
def test_bytes_of_an_element(dtype, size):
    assert bytes_per_element(dtype) == size


def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown dtype 'float'; known: fp64, fp32"):
        bytes_per_element("float")


def test_the_flag_of_every_option_is_one_of_the_command():
    from traincast.cli.simulate import command

    known = {name for parameter in command.params for name in parameter.opts}
    assert {flag_of(each) for each in LayoutOptions.__struct_fields__} <= known | {"--comm", "--expert-imbalance"}
    assert flag_of("pp_message_bytes") == "--pp-comm"
    assert flag_of("layer_block") == "--layer-block"
