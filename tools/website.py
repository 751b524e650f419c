"""Build the site: gather the pages, make the references from the code, run mkdocs in strict mode.

    python tools/website.py [--pages-only]

Pages are those of docs/, the README as the first one, and papers of the project; links between them are rewritten to
where they stand on the site, and a link to another file of the repository keeps its text alone. Needs the extra
``site``; the site is in build/site, and works without a server and a network.
"""

import argparse
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import traincast
from traincast.cli.reference import CommandHelp, commands

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
WORKER = ROOT / "tools" / "file_worker.js"
_ELSEWHERE = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim">')
PAPERS = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "studies/README.md": "studies.md",
    "studies/data/README.md": "studies-data.md",
}
"""Pages that have other names on the site: those that stand elsewhere than in docs/, and the list of all."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_SOURCE = re.compile(r'((?:src|srcset)=")docs/')
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)


def gathered() -> dict[str, str]:
    """Return every page by its name on the site."""
    names = {str(path.relative_to(ROOT)): path.name for path in sorted((ROOT / "docs").glob("*.md"))} | PAPERS
    pages = {name: relinked(ROOT / source, names) for source, name in names.items()}
    return pages | {"cli.md": "\n".join(_command_line()), "api.md": "\n".join(_public_names())}


def relinked(source: Path, names: dict[str, str]) -> str:
    """Return a page with its links as they go on the site."""

    def link(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = os.path.relpath((source.parent / target).resolve(), ROOT)
        if path in names:
            return f"{picture}[{text}]({names[path]}{anchor})"
        return f"{picture}[{text}]({path.removeprefix('docs/')})" if path.startswith("docs/") else text

    return _SOURCE.sub(r"\1", _LINK.sub(link, source.read_text(encoding="utf-8")))


def _command_line() -> Iterator[str]:
    """Yield the reference of the command line, from its help."""
    yield "# Command line\n\nMade from `traincast COMMAND --help`; Megatron-LM's long names stand next to ours."
    yield "[In the shell](shell.md) tells of exit codes, completion, and what goes where.\n"
    for each in commands():
        yield f"## {each.name}\n\n```text\n{each.name} {each.usage}\n```\n"
        yield from _help(each)


def _help(each: CommandHelp) -> Iterator[str]:
    for text in each.paragraphs:
        lines = text.removeprefix("\b").strip()
        yield f"```text\n{lines}\n```\n" if text.startswith("\b") else f"{_plain(' '.join(text.split()))}\n"
    if each.options:
        yield "| option | |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(_plain(what))} |" for name, what in each.options)
        yield ""


def _public_names() -> Iterator[str]:
    """Yield the reference of Python, from signatures and docstrings."""
    yield "# Every public name\n\nOf `import traincast`, made from the code; [Python](python.md) shows them at work.\n"
    for name in traincast.__all__:
        value = getattr(traincast, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        yield f"## {name}\n\n```python\n{name}{_signature(value)}\n```\n"
        yield _docstring(inspect.getdoc(value) or "")
        if inspect.isclass(value):
            yield from _methods(value)


def _methods(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        given = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        text = inspect.getdoc(given)
        if name.startswith("_") or text is None or not (inspect.isroutine(given) or isinstance(given, property)):
            continue
        call = _signature(given) if inspect.isroutine(given) else ""
        yield f"### {kind.__name__}.{name}\n\n```python\n{name}{call}\n```\n\n{_docstring(text)}\n"


def _signature(value: object) -> str:
    try:
        said = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return re.sub(r"(?:traincast|collections|pathlib)(?:\.\w+)*\.(?=[A-Z])", "", said)


def _docstring(text: str) -> str:
    """Return a docstring of NumPy's style as Markdown: a section is a list, examples stay as they are."""
    head, *sections = _SECTION.split(text)
    parts = [_plain(head.strip())]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title.strip() == "Examples":
            parts.append(f"**Examples**\n\n```pycon\n{body.strip()}\n```")
            continue
        parts.append(f"**{title.strip()}**\n")
        entries = re.split(r"\n(?=\S)", body.strip())
        parts[-1] += "\n" + "\n".join(_entry(entry) for entry in entries)
    return "\n\n".join(parts) + "\n"


def _entry(text: str) -> str:
    name, _, what = text.partition("\n")
    said = _plain(" ".join(what.split()))
    return f"- `{name.strip()}`{': ' if said else ''}{said}"


def _plain(text: str) -> str:
    """Return a text with double backquotes as single ones, and nothing in it that is markup by chance."""
    return re.sub(r"``([^`]*)``", r"`\1`", text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> int:
    """Gather the pages and build the site; return the exit code."""
    parser = argparse.ArgumentParser(description="build the site from the pages and the code")
    parser.add_argument("--pages-only", action="store_true", help="gather build/pages and run no mkdocs")
    given = parser.parse_args()
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "pictures", PAGES / "pictures")
    for name, text in gathered().items():
        (PAGES / name).write_text(text, encoding="utf-8")
    if given.pages_only:
        return 0
    # Without --quiet, which would keep its warnings from being counted; a notice of later versions is none of ours.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    if done.returncode == 0:
        _without_network()
    return done.returncode


def _without_network() -> None:
    """Let the search of pages that are opened as files take our worker instead of one from elsewhere."""
    (SITE / "assets" / WORKER.name).write_bytes(WORKER.read_bytes())
    for path in SITE.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        depth = "../" * (len(path.relative_to(SITE).parts) - 1)
        text = _ELSEWHERE.sub(f'<script src="{depth}assets/{WORKER.name}">', text)
        if 'src="http' in text:
            sys.exit(f"{path.relative_to(ROOT)} takes a file from elsewhere")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
