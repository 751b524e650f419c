"""Hold README.md and docs/*.md to what the commands in them print, or write that into them.

    python tools/docs.py --check | --write [PAGE...]

A block of the language ``console`` is a session: lines that begin with ``$ traincast`` are commands (a backslash at the
end continues one), what follows is what they print, 80 columns wide: results,
and where a command ends in an error that. The commands of a page run in one
new folder that holds ``examples/``, and the files that the page shows: a block after ``<!-- file NAME -->``.

A page may leave out some of what is printed. ``...`` between blank lines stands for whole paragraphs; as a line of a
paragraph it stands for lines of it. What follows it is found again by how its first line begins, whatever its figures,
and goes on to the end of the paragraph, or for as many lines or list items as are shown where ``...`` cuts it off. A
block without a command goes on with what the last command of the page printed; a block of ``text`` after
``<!-- output -->`` shows what the last command of the block before prints. Times that the machine took differ each
time; a paragraph in which nothing else differs stays.

A block of ``pycon`` is a session of Python, which goes on from block to block of a page, in the same folder.

Output of anything else stands in a block of ``text`` after a comment that says what printed it.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from doctest import DocTestParser
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = "..."
_FENCE = re.compile(r"^( *)```(\w*)\s*$")
_COMMENT = re.compile(r"^<!-- (.*) -->$")
_COMMAND = re.compile(r"^\$ (traincast .*)$")
_ITEM = re.compile(r"^( *)(- )?")
_FIGURE = re.compile(r"[-+]?\d[\d.,]*")
_TIME_TAKEN = re.compile(r"\b(estimated in) [\d.,]+ (?:us|ms|s|min)\b")
"""Times that are no forecast: those that the command itself took."""
_ALIKE = 0.6
"""Least similarity of two lines, figures aside, of which one stands for the other."""
_LIMIT_S = 600
_VERDICTS = (0, 4, 5)
"""Exit codes of commands that did what they were asked to; 4 and 5 are verdicts of ``check``."""


class PageError(Exception):
    """A page cannot be held to what is printed; the message says where and why."""


@dataclass
class Block:
    """One fenced block of a page."""

    first: int
    """Index of the line of its opening fence."""
    language: str
    comment: str
    """What the comment on the line before says; empty where there is none."""
    lines: list[str]


def blocks(page: Sequence[str]) -> Iterator[Block]:
    """Find the fenced blocks of a page."""
    at = 0
    while at < len(page):
        opened = _FENCE.match(page[at])
        if opened:
            end = next(i for i in range(at + 1, len(page) + 1) if i == len(page) or page[i].strip() == "```")
            comment = _COMMENT.match(page[at - 1]) if at else None
            yield Block(at, opened[2], comment[1] if comment else "", list(page[at + 1 : end]))
            at = end
        at += 1


def paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Split lines at blank ones."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [each for each in found if each]


def items(lines: Sequence[str]) -> list[list[str]]:
    """Split a paragraph into its lines; a list item keeps the lines that it goes on over."""
    found: list[list[str]] = []
    hanging = 0
    for line in lines:
        indent, bullet = _ITEM.match(line).groups()  # type: ignore[union-attr]
        if hanging and len(indent) >= hanging and not bullet:
            found[-1].append(line)
        else:
            found.append([line])
            hanging = len(indent) + 2 if bullet else 0
    return found


def excerpt(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return what is printed now, with left out what `shown` leaves out of what was printed before."""
    there, at, skipping = paragraphs(printed), 0, False
    found: list[list[str]] = []
    for paragraph in paragraphs(shown):
        if paragraph == [LEFT_OUT]:
            skipping = True
            continue
        index = _find(paragraph, there, at)
        if index is None and skipping:
            raise PageError(f"nothing that is printed begins like {paragraph[0]!r}")
        if index is None:
            continue
        if skipping:
            found += [[LEFT_OUT]] if index > at else []
        else:
            found += there[at:index]
        found.append(_cut(paragraph, there[index]))
        at, skipping = index + 1, False
    if at < len(there):
        found += [[LEFT_OUT]] if skipping else there[at:]
    return [line for each in found for line in ("", *each)][1:]


def _cut(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return a paragraph with left out what `shown` leaves out."""
    marks = [line for line in shown if line.strip() == LEFT_OUT]
    if not marks:
        return list(printed)
    there, at, found = items(printed), 0, []
    groups: list[list[list[str]]] = [[]]
    for item in items(shown):
        if item[0].strip() == LEFT_OUT:
            groups.append([])
        else:
            groups[-1].append(item)
    for number, group in enumerate(groups):
        if not group:
            continue
        index = 0 if number == 0 else _find(group[0], there, at)
        if index is None:
            raise PageError(f"no line of {printed[0]!r} that is printed begins like {group[0][0]!r}")
        end = len(there) if number == len(groups) - 1 else index + len(group)
        found += [marks[0]] if index > at else []
        found += [line for item in there[index:end] for line in item]
        at = end
    return found + ([marks[-1]] if at < len(there) else [])


def _find(wanted: Sequence[str], there: Sequence[Sequence[str]], first: int) -> int | None:
    """Return the index of what begins most like the wanted one, its figures aside; None where nothing does."""
    likeness = [
        2.0 if each[0] == wanted[0] else SequenceMatcher(None, _plain(wanted[0]), _plain(each[0])).ratio()
        for each in there[first:]
    ]
    best = max(likeness, default=0.0)
    return first + likeness.index(best) if best >= _ALIKE else None


def _plain(line: str) -> str:
    return " ".join(_FIGURE.sub("#", line).split())


def _without_times(paragraph: Sequence[str]) -> str:
    """Return the words of a paragraph, however long its lines, without the times that a machine took."""
    return _TIME_TAKEN.sub(r"\1 #", " ".join(" ".join(paragraph).split())) if paragraph else ""


def keep_times(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the new lines, but the old paragraph where only the time that a machine took is another."""
    known = {_without_times(each): each for each in paragraphs(old)}
    kept = [known.get(_without_times(each), each) for each in paragraphs(new)]
    return [line for each in kept for line in ("", *each)][1:]


def _environment() -> dict[str, str]:
    source = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "COLUMNS": "80", "PYTHONUTF8": "1", "PYTHONPATH": source}


def printed_by(command: str, folder: Path, *, fails: bool) -> list[str]:
    """Return the lines that a command prints when it is run in a folder; `fails` says that it is known to."""
    done = subprocess.run(
        [sys.executable, "-m", "traincast.cli", *shlex.split(command, comments=True)[1:]],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=_LIMIT_S,
        check=False,
    )
    if (done.returncode not in _VERDICTS) != fails:
        raise PageError(f"ends with {done.returncode}: {command}\n{done.stderr.strip()}")
    told = f"{done.stdout}{done.stderr}" if fails else done.stdout
    return [line.rstrip() for line in told.splitlines()]


_SESSION = """
import contextlib, io, json, sys, traceback
names = {}
for line in sys.stdin:
    told = []
    for source in json.loads(line):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(source, "<page>", "single"), names)
            except Exception as error:
                print(*traceback.format_exception_only(error), end="")
        told.append(out.getvalue())
    print(json.dumps(told), flush=True)
"""
"""Runs lines of Python as they would be typed, and says what each shows; lines that come later know what was before."""


class PythonSession:
    """Python to which the lines of a page are typed in a folder, from its first block to its last."""

    def __init__(self, folder: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SESSION],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def shown_by(self, sources: Sequence[str]) -> list[str]:
        """Return what Python shows after each of some inputs."""
        stop = Timer(_LIMIT_S, self._process.kill)
        stop.start()
        try:
            self._process.stdin.write(json.dumps(list(sources)) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            told = self._process.stdout.readline()  # type: ignore[union-attr]
        finally:
            stop.cancel()
        if not told:
            code = self._process.wait()
            self._errors.seek(0)
            raise PageError(f"Python ends with {code}: {self._errors.read().decode(errors='replace').strip()}")
        return list(json.loads(told))

    def close(self) -> None:
        """End it."""
        self._process.communicate()
        self._errors.close()


class Page:
    """A page, whose commands are run in a folder of its own."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self._printed: list[str] = []
        self._python_of_page: PythonSession | None = None

    def rewritten(self) -> list[str]:
        """Run the commands of the page, in their order; return it with what they print."""
        try:
            return self._rewritten()
        finally:
            if self._python_of_page is not None:
                self._python_of_page.close()

    def _rewritten(self) -> list[str]:
        found, done, before = [], 0, Block(0, "", "", [])
        for block in blocks(self.lines):
            found += self.lines[done : block.first + 1]
            try:
                found += self._block(block, before)
            except (PageError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                raise PageError(f"{self.path.relative_to(ROOT)}:{block.first + 1}: {error}") from None
            done, before = block.first + 1 + len(block.lines), block
        for number, line in enumerate(self.lines[done:], done + 1):
            self._refuse_indented(line, number)
        return found + self.lines[done:]

    def _refuse_indented(self, line: str, number: int) -> None:
        if line.startswith("    $ traincast"):
            raise PageError(f"{self.path.relative_to(ROOT)}:{number}: show a session in a block of console")

    def _block(self, block: Block, before: Block) -> list[str]:
        if block.comment.startswith("file "):
            target = self.folder / block.comment.removeprefix("file ")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        if block.language == "console":
            return self._session(block.lines)
        if block.language == "pycon":
            return self._python(block.lines)
        if block.language == "text" and block.comment == "output":
            command = before.lines[-1].rpartition("traincast ")[2]
            self._printed = printed_by(f"traincast {command}", self.folder, fails=False)
            return self._shown(block.lines)
        if block.language in {"", "text"} and not block.comment:
            raise PageError("say in a comment before the block what printed it, or make it a block of console")
        return block.lines

    def _python(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of a session of Python as it goes now, after those before it on the page."""
        examples = DocTestParser().get_examples("\n".join(lines) + "\n")
        self._python_of_page = self._python_of_page or PythonSession(self.folder)
        shown = self._python_of_page.shown_by([each.source for each in examples])
        found = []
        for example, text in zip(examples, shown, strict=True):
            prompts = (">>> ", *["... "] * example.source.count("\n"))
            found += [
                f"{prompt}{line}".rstrip() for prompt, line in zip(prompts, example.source.splitlines(), strict=False)
            ]
            found += [line.rstrip() for line in text.splitlines()]
        return found

    def _session(self, lines: Sequence[str]) -> list[str]:
        """Return the lines of a session as it goes now."""
        found: list[str] = []
        at = 0
        while at < len(lines):
            begun = _COMMAND.match(lines[at])
            typed = at
            if begun:
                while lines[typed].endswith("\\"):
                    typed += 1
                typed += 1
            shown = lines[typed:]
            upto = next((i for i, line in enumerate(shown) if _COMMAND.match(line)), len(shown))
            shown = shown[:upto]
            found += lines[at:typed]
            if begun:
                command = " ".join(line.removesuffix("\\").strip() for line in lines[at:typed])[2:]
                fails = bool(shown) and shown[-1].casefold().startswith("error")
                self._printed = printed_by(command, self.folder, fails=fails)
            found += self._shown(shown)
            at = typed + upto
        return found

    def _shown(self, shown: Sequence[str]) -> list[str]:
        return keep_times(shown, excerpt(shown, self._printed))


def rewritten(path: Path) -> list[str]:
    """Return the lines of a page as its commands print them now."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(ROOT / "examples", folder / "examples")
        return Page(path, folder).rewritten()


def settle(path: Path, *, write: bool) -> str:
    """Write what is printed now into a page, or only compare; return what is wrong with it, or nothing."""
    old = path.read_text(encoding="utf-8").splitlines()
    try:
        new = rewritten(path)
    except PageError as error:
        return str(error)
    name = str(path.relative_to(ROOT))
    if new == old:
        return ""
    if write:
        path.write_text("\n".join(new) + "\n", encoding="utf-8")
        print(f"wrote {name}", flush=True)
        return ""
    return "\n".join(unified_diff(old, new, f"{name} as it is", f"{name} as it is printed", lineterm="", n=1))


def main() -> int:
    """Check the pages or write them; return the exit code."""
    parser = argparse.ArgumentParser(description="hold the pages to what the commands in them print")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="compare; exit code 1 where a page differs")
    does.add_argument("--write", action="store_true", help="write what is printed now into the pages")
    parser.add_argument("pages", nargs="*", type=Path, help="README.md and docs/*.md by default")
    given = parser.parse_args()
    pages = [each.resolve() for each in given.pages] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    # Those that plan take longest: nobody is to wait for one at the end.
    pages.sort(key=lambda path: -path.read_text(encoding="utf-8").count("$ traincast plan "))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [each for each in pool.map(lambda path: settle(path, write=given.write), pages) if each]
    for each in wrong:
        print(each, file=sys.stderr)
    if wrong:
        print("python tools/docs.py --write writes what is printed", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
