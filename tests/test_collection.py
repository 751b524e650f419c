"""No test file is passed over by the commands that run the tests."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_every_test_file_is_collected(pytestconfig, collected_files):
    """What this run has collected, where it is asked for all tests."""
    if [Path(each) for each in pytestconfig.args] not in ([TESTS], [Path("tests")]):
        pytest.skip("only some tests are asked for")
    assert collected_files == set(TESTS.glob("**/test_*.py"))
