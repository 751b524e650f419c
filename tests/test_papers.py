"""The papers of the project agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

import headline
import traincast

ROOT = Path(__file__).parent.parent


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert project["version"] == traincast.__version__ == cited
    assert re.search(rf"^## .*{re.escape(cited)}", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_readme_shows_the_figures_of_the_accuracy_page():
    """To write them: python studies/headline.py."""
    readme = (ROOT / "README.md").read_text()
    assert headline.with_headline(readme, (ROOT / "docs" / "ACCURACY.md").read_text()) == readme


PAGE = f"""{headline._COMMAND}
```text
Error
                     rows   mean median    p90    p95   bias rank corr. in 90 %
  all               9,999  6.3 %  4.3 % 14.4 % 21.1 % +0.2 %      0.997    93 %

{headline._HELD_OUT}
                     rows   mean median    p90    p95   bias rank corr. in 90 %
  all               1,234  7.4 %  1.1 % 16.2 % 22.6 % -0.1 %      0.996    92 %
  by board
    MoE               152 10.5 %  2.2 % 20.1 % 27.0 % -1.0 %      0.984    86 %
    dense BF16/FP16   463  5.3 %  3.3 % 12.0 % 17.9 % -0.2 %      0.996    95 %
    dense FP8         244  6.0 %  4.4 % 12.2 % 15.5 % +0.2 %      0.992    92 %

```
"""


def test_figures_come_from_the_table_with_families_left_out():
    readme = "<!-- accuracy -->\nold\n<!-- end of accuracy -->\n\n| **traincast** | old | yes |\n"
    written = headline.with_headline(readme, PAGE)
    assert "Median error 1.1 % over 1,234 published" in written
    assert "| MoE | 152 | 2.2 % | 20.1 % | 86 % |" in written
    assert "| **traincast** | 1.1 % median over 1,234 published runs, families left out (M) | yes |" in written
    assert "old" not in written
    assert headline.with_headline(written, PAGE) == written


@pytest.mark.parametrize("lost", ["    MoE ", headline._HELD_OUT, headline._COMMAND])
def test_a_page_without_them_is_an_error(lost):
    with pytest.raises(ValueError, match="MoE"):
        headline.with_headline("", PAGE.replace(lost, ""))
