"""The words that the page explains are those of the glossary."""

import runpy
from pathlib import Path

from traincast.shipped import shipped_rows, shipped_text

TOOL = Path(__file__).parents[2] / "tools" / "glossary.py"


def test_the_data_is_that_of_the_page():
    assert shipped_text("serve/glossary.csv") == runpy.run_path(str(TOOL))["table"](), "run python tools/glossary.py"


def test_words_of_the_form_and_of_the_answer_are_explained():
    words = {row["word"]: row["meaning"] for row in shipped_rows("serve/glossary.csv")}
    assert {"tp", "pp", "dp", "MFU", "compute", "bubble", "step", "memory", "goodput"} <= words.keys()
    assert words["MFU"].startswith("model FLOPs")
    assert not any("`" in meaning for meaning in words.values())
