"""What pages show is what commands print: how `tools/docs.py` finds a block's excerpt in new output."""

import re
from pathlib import Path

import pytest

import docs

OLD = """Step 14.7 s
1,024 ranks

Where the time goes
  compute  7.1
  bubble   6.9
  other    0.1

Warnings
  - the job may not fit: stage 1 needs 82.2 GiB,
    79.1 GiB usable
  - no cluster was given
  - the header says no vpp

The end""".splitlines()
NEW = """Step 9.3 s
1,024 ranks

What is new
  nothing

Where the time goes
  compute  5.1
  exposed  1.0
  bubble   3.2

Warnings
  - the header says no vpp
  - the job may not fit: stage 0 needs 80.2 GiB
  - no cluster was given

The end""".splitlines()


def _shown(text: str) -> list[str]:
    return text.strip("\n").splitlines()


def test_a_block_without_a_mark_is_all_that_is_printed() -> None:
    assert docs.excerpt(OLD, NEW) == NEW
    assert docs.excerpt([], NEW) == NEW


def test_a_mark_between_blank_lines_stands_for_paragraphs() -> None:
    shown = _shown("...\n\nWhere the time goes\n  compute  7.1\n  bubble   6.9\n  other    0.1\n\n...")
    assert docs.excerpt(shown, OLD) == shown
    new = "...\n\nWhere the time goes\n  compute  5.1\n  exposed  1.0\n  bubble   3.2\n\n..."
    assert docs.excerpt(shown, NEW) == _shown(new)


def test_a_mark_in_a_paragraph_stands_for_lines_of_it() -> None:
    shown = _shown("Step 14.7 s\n...\n\n...\n\nWhere the time goes\n  compute  7.1\n  ...\n\n...")
    assert docs.excerpt(shown, OLD) == [*shown[:2], *shown[4:]], "a mark for nothing goes"
    new = "Step 9.3 s\n...\n\n...\n\nWhere the time goes\n  compute  5.1\n  ...\n\n..."
    assert docs.excerpt(shown, NEW) == _shown(new)


def test_a_list_item_is_found_by_its_words_and_shown_whole() -> None:
    shown = _shown(
        "...\n\nWarnings\n  - the job may not fit: stage 1 needs 82.2 GiB,\n    79.1 GiB usable\n  ...\n\nThe end"
    )
    assert docs.excerpt(shown, OLD) == shown
    shown = _shown("...\n\nWarnings\n  ...\n  - the job may not fit: stage 1 needs\n  ...\n\nThe end")
    new = "...\n\nWarnings\n  ...\n  - the job may not fit: stage 0 needs 80.2 GiB\n  ...\n\nThe end"
    assert docs.excerpt(shown, NEW) == _shown(new)


def test_what_cannot_be_found_again_is_named() -> None:
    with pytest.raises(docs.PageError, match="begins like 'Communication'"):
        docs.excerpt(["...", "", "Communication"], NEW)


def test_a_paragraph_in_which_only_a_run_time_differs_stays() -> None:
    old = ["8 layouts estimated in 12.1 s, of which one", "fits", "", "Step 3 s"]
    new = ["8 layouts estimated in 9 s, of which", "one fits", "", "Step 4 s"]
    assert docs.keep_times(old, new) == [*old[:3], "Step 4 s"]
    other = ["9 layouts estimated in 9 s, of which one", "fits"]
    assert docs.keep_times(old, other) == other
    assert docs.keep_times(["it takes 3 s"], ["it takes 4 s"]) == ["it takes 4 s"]


def test_sessions_of_python_go_on_from_block_to_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```pycon\n>>> x = 2\n>>> for i in range(2):\n...     print(i)\n7\n```\n\n```pycon\n>>> x\n>>> 1 / 0\n```\n"
    )
    new = "\n".join(docs.Page(page, tmp_path).rewritten())
    assert new == (
        "```pycon\n>>> x = 2\n>>> for i in range(2):\n...     print(i)\n0\n1\n```\n\n"
        "```pycon\n>>> x\n2\n>>> 1 / 0\nZeroDivisionError: division by zero\n```"
    )


def test_a_page_is_rewritten_with_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file a.txt -->\n```json\n1\n```\n\n```console\n$ traincast show \\\n    a.txt  # all\nold\n"
        "$ traincast fail\nerror: no\n```\n\n```console\n...\n```\nEnd\n"
    )
    asked = []

    def printed(command: str, folder: Path, *, fails: bool) -> list[str]:
        asked.append((command, (folder / "a.txt").read_text(), fails))
        return ["new"] if "show" in command else ["error: no"]

    monkeypatch.setattr(docs, "printed_by", printed)
    new = docs.Page(page, tmp_path).rewritten()
    assert asked == [("traincast show a.txt  # all", "1\n", False), ("traincast fail", "1\n", True)]
    assert "\n".join(new) + "\n" == page.read_text().replace("old", "new")


def test_output_from_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```text\nStep 3 s\n```\n")
    with pytest.raises(docs.PageError, match=r"page\.md:3: .*what printed it"):
        docs.Page(page, tmp_path).rewritten()


_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MADE = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
_OF_OTHERS = re.compile(r"^\| \[.*$|^.*\bP\d [A-Z].*$", re.MULTILINE)
"""Rows and notes on other tools, which say where their figures stand."""
_SHARE = re.compile(r"(?<![\w.])(\d[\d,]*\.\d+) %")
"""What was worked out; thresholds are whole numbers."""


@pytest.mark.parametrize("page", ["README.md", "docs/ACCURACY.md"])
def test_every_share_that_a_page_speaks_of_is_printed(page: str) -> None:
    root = Path(__file__).parent.parent
    text = (root / page).read_text("utf-8")
    sources = text + (root / "docs" / "ACCURACY.md").read_text("utf-8")
    made = "\n".join(found[0] for pattern in (_FENCED, _MADE) for found in pattern.finditer(sources))
    prose = _OF_OTHERS.sub("", _MADE.sub("", _FENCED.sub("", text)))
    printed = set(_SHARE.findall(made))
    assert len(printed) > 10
    assert [each for each in _SHARE.findall(prose) if each not in printed] == []
