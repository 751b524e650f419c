"""Where measured tables lie: excerpts beside the tests, and the whole of them where a checkout has a data folder."""

from pathlib import Path

import pytest

EXCERPTS = Path(__file__).parent / "measured"
WHOLE = Path(__file__).parents[2] / "shared" / "data"

each_folder = pytest.mark.parametrize(
    "folder",
    [
        pytest.param(EXCERPTS, id="excerpt"),
        pytest.param(
            WHOLE, id="whole", marks=pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole tables are not at hand")
        ),
    ],
)
"""Run a test over the excerpts, and over the whole tables where they are at hand."""
