"""The pages of the site, as they are gathered; the site itself is built by a step of CI."""

import re
from pathlib import Path

import pytest

import traincast
import website

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pages():
    return website.gathered()


def test_every_page_is_gathered_and_has_a_place_in_the_menu(pages):
    assert set(pages) >= {path.name for path in (ROOT / "docs").glob("*.md")} | {"index.md", "cli.md", "api.md"}
    menu = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(pages)


def test_links_are_those_of_the_site(pages):
    for name, text in pages.items():
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            there = target in pages or (ROOT / "docs" / target).is_file()
            assert there, f"{name} links to {target}"
    assert 'src="pictures/slow_rank.svg"' in pages["index.md"]


def test_the_references_hold_every_command_and_public_name(pages):
    assert "## traincast simulate\n" in pages["cli.md"]
    assert "| `--cluster NAME\\|FILE` |" in pages["cli.md"]
    named = set(re.findall(r"^## (\w+)$", pages["api.md"], re.MULTILINE))
    assert named == {name for name in traincast.__all__ if callable(getattr(traincast, name))}


def test_docstrings_become_lists():
    head, tail = "Say ``it``.\n\nMore.\n\nParameters\n----------\n", "\n\nRaises\n------\nError\n    If."
    text = f"{head}rank : int\n    Which one,\n    0 first.{tail}"
    assert website._docstring(text) == (
        "Say `it`.\n\nMore.\n\n**Parameters**\n\n- `rank : int`: Which one, 0 first.\n\n**Raises**\n\n- `Error`: If.\n"
    )
