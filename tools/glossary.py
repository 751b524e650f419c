"""Write the words of docs/glossary.md as data, for pages that explain a word on hover.

Run: ``python tools/glossary.py`` after a change of the glossary; a test says where it was forgotten.
"""

import csv
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "glossary.md"
_ALONE = 24
"""Letters of a part of a meaning that says something by itself."""
DATA = ROOT / "src" / "traincast" / "data" / "serve" / "glossary.csv"


def words(page: str) -> dict[str, str]:
    """Return every word of a glossary with its meaning, both as plain text.

    Examples
    --------
    >>> words("| `tp cp`, TP | degrees of [it](jobs.md) |")
    {'tp': 'degrees of it', 'cp': 'degrees of it', 'TP': 'degrees of it'}
    """
    found: dict[str, str] = {}
    for named, meaning in re.findall(r"^\| (.+?) \| (.+) \|$", page, re.MULTILINE):
        if named == "word":
            continue
        single, parts = _single(named), _plain(meaning).split("; ")
        for at, each in enumerate(single):
            own = parts[at] if len(parts) == len(single) and len(parts[at]) >= _ALONE else "; ".join(parts)
            found.setdefault(each, own)
    return found


def _single(named: str) -> list[str]:
    """Return the words that one line is about; a list of degrees in code is one of each."""
    parts = [part.strip() for part in re.split(r",(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", named)]
    return [word for part in parts for word in (part.strip("`").split() if part.startswith("`") else [_plain(part)])]


def _plain(text: str) -> str:
    """Return a text without the marks of Markdown."""
    text = re.sub(r" \(\[[^\]]+\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "").replace("\\|", "|").strip()


def table() -> str:
    """Return the data file that belongs to the glossary as it is."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("word", "meaning"))
    writer.writerows(words(PAGE.read_text(encoding="utf-8")).items())
    return out.getvalue()


if __name__ == "__main__":
    DATA.write_text(table(), encoding="utf-8")
