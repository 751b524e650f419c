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
    page = (ROOT / "docs" / "ACCURACY.md").read_text()
    for text in (page, (ROOT / "README.md").read_text()):
        assert headline.with_headline(text, page) == text


def block(by, median):
    """What the page shows with groups left out: `median` is that of all runs."""
    names = (*list(headline._SHOWN)[1:], *headline.FITS)
    groups = "".join(
        f"    {name:15}   152 10.5 %  2.2 % 20.1 % 27.0 % -1.0 %      0.984    {80 + at} %\n"
        for at, name in enumerate(names)
    )
    return f"""{headline._COMMAND.format(by)}
```text
Error
                     rows   mean median    p90    p95   bias rank corr. in 90 %
  all               9,999  6.3 %  4.3 % 14.4 % 21.1 % +0.2 %      0.997    93 %

{headline._HELD_OUT.format(by)}
                     rows   mean median    p90    p95   bias rank corr. in 90 %
  all               1,234  7.4 %  {median} % 16.2 % 22.6 % -0.1 %      0.996    92 %
  by board
{groups}  each of 32 sources counted once: median error 6.2 %, 75 % inside the
  interval

```

"""


PAGE = block(headline.FAMILY, 1.1) + block(headline.ELSEWHERE, 3.3)


def test_figures_come_from_the_tables_with_groups_left_out():
    readme = "<!-- accuracy -->\nold\n<!-- end of accuracy -->\n\n| **traincast** | old | yes |\n"
    written = headline.with_headline(readme, PAGE)
    assert "Median error 1.1 % (mean 7.4 %) over 1,234 published" in written
    assert "3.3 % (mean 7.4 %) by one that has seen nothing" in " ".join(written.split())
    assert "| MoE | 152 | 2.2 %, 20.1 % | 83 % | 2.2 %, 20.1 % | 83 % |" in written
    peer = (
        "7.4 % mean (1.1 % median) over 1,234 published runs, families left out; 7.4 % mean with sources and chips left"
    )
    assert f"| **traincast** | {peer} out (M) | yes |" in written
    assert "old" not in written
    assert headline.with_headline(written, PAGE) == written


@pytest.mark.parametrize(
    "lost",
    [
        "    MoE ",
        *(text.format(by) for text in (headline._HELD_OUT, headline._COMMAND) for by in ("family", "source+chip")),
    ],
)
def test_a_page_without_them_is_an_error(lost):
    with pytest.raises(ValueError, match="MoE"):
        headline.with_headline("", PAGE.replace(lost, ""))
