"""The pages of the site, as they are gathered; the site itself is built by a step of CI."""

import re
from pathlib import Path

import pytest

import traincast
import website

ROOT = Path(__file__).parent.parent
MENU = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


@pytest.fixture(scope="module")
def pages():
    return website.gathered()


def test_every_page_is_gathered_and_has_a_place_in_the_menu(pages):
    ours = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(pages) >= ours | {"index.md", "pages.md", "cli.md", "api.md"}
    assert sorted(page for _, group in groups(MENU) for page in group) == sorted(pages)


def test_the_menu_has_the_groups_of_the_list_of_pages(pages):
    made = {"pages.md", "cli.md", "api.md"}
    menu = [(title, [page for page in group if page not in made]) for title, group in groups(MENU)]
    assert groups(pages["pages.md"]) == [each for each in menu if each[0] != "Project"]


def groups(text):
    """Return the titles of the groups of a menu or a list of pages, each with its pages."""
    parts = re.split(r"^(?:  - |## )([\w-]+):?$", text, flags=re.MULTILINE)
    return [
        (title, re.findall(r"([\w-]+\.md)(?:$|\))", part, re.MULTILINE))
        for title, part in zip(parts[1::2], parts[2::2], strict=True)
    ]


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
