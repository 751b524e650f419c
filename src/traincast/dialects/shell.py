"""Commands as people paste them: shell text or its words, with assignments, continued lines and variables.

Not a shell: what would have to be run (``$(...)``) is left as it stands, so that whoever needs the value can say which
variable has none; of conditions all branches are read. Source of the grammar: POSIX.1-2024, Shell Command Language, and
Bash's arrays.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from traincast.errors import ConfigError
from traincast.units import LARGEST_WHOLE, count_of

_SEPARATORS = frozenset(";&|\n")
_REDIRECTIONS = re.compile(r"^\d*[<>][<>&|]*\d*$|^&>+$|^>&$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_ARRAY = re.compile(r"^[A-Za-z_]\w*\+?=\((?![(\[])")
_VARIABLE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^{}]*))?\}|\$([A-Za-z_]\w*|\d)")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
_TERM = re.compile(r"(?<!\s)\s*+([*/]?)\s*+(\w++)")
_SIGNS: Mapping[str, Callable[[int, int], int]] = {"*": int.__mul__, "/": int.__floordiv__}
_WHOLE = re.compile(r"^\$\{\w+(?:\[[@*]\])?(?::?-[^{}]*)?\}$|^\$(?:[A-Za-z_]\w*|\d)$")
_FORWARDED = frozenset(("$@", "${@}", "$*", "${@:1}", "${@:2}"))
_EXPORTS = frozenset(("export", "declare", "local", "readonly"))
_CONDITIONS = frozenset(("if", "elif", "while", "until", "for", "case", "[", "[[", "test"))
_BRANCHES = frozenset(("then", "else", "do", "fi", "done", "esac", "{", "}", "exec", "time"))
_ASIDE = frozenset(
    ("echo", "printf", "cat", "cp", "mv", "ls", "rm", "mkdir", "cd", "source", ".", "exit", "set", "pip")
)
_DIRECTIVE = "#SBATCH"
_ROUNDS = 8
_LONGEST = 1 << 18


class Commands(Struct, frozen=True):
    """What a text or a list of words says."""

    commands: tuple[tuple[str, ...], ...]
    """The words of each command, variables that are set replaced."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What was assigned before or between them."""
    directives: tuple[str, ...] = ()
    """Words of ``#SBATCH`` lines."""
    conditions: bool = False
    """Whether there were conditions or loops, which are passed over."""


def has_variable(word: str) -> bool:
    """Say whether a word holds something that only a shell could replace."""
    return bool(_VARIABLE.search(word)) or "$(" in word or "`" in word


def is_variable(word: str) -> bool:
    """Say whether a word is nothing but a variable, which may stand for several words or none."""
    return bool(_WHOLE.match(word)) or (word.startswith("$(") and word.endswith(")"))


def read_commands(words: Sequence[str], shown: str) -> Commands:
    """Split pasted words into commands.

    One word with blanks in it is the text of a script; several are what a shell has made of a line already.

    Raises
    ------
    ConfigError
        If a quotation does not end.
    """
    if len(words) == 1 and re.search(r"\s", words[0]):
        tokens, directives = _tokens(words[0], shown)
    else:
        tokens, directives = [word.strip() for word in words], []
    variables: dict[str, str] = {}
    unbranched = [list(_unbranched(each)) for each in _split(tokens)]
    plain = [each for each in unbranched if each and each[0] not in _CONDITIONS | _ASIDE]
    commands = [found for each in plain if (found := tuple(_assigned(each, variables)))]
    read = tuple(tuple(expanded(command, variables)) for command in commands)
    conditions = any(each[0] in _CONDITIONS for each in unbranched if each)
    return Commands(read, variables, tuple(directives), conditions)


def _unbranched(command: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without ``then``, ``do`` and the like before it."""
    begun = False
    for word in command:
        begun = begun or word not in _BRANCHES
        if begun:
            yield word


def _tokens(text: str, shown: str) -> tuple[list[str], list[str]]:
    """Return the words and separators of a text, and the words of its ``#SBATCH`` lines."""
    lines = re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines()
    directives = [line.strip() for line in lines if line.strip().startswith(_DIRECTIVE)]
    kept = [re.sub(r"(?:^|\s)#\s.*$|^\s*#.*$", "", line) for line in lines]
    # The number of a redirected stream is not a word.
    joined = re.sub(r"(?<=\s)\d(?=[<>])", "", "\n".join(kept))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer), [word for line in directives for word in shlex.split(line.removeprefix(_DIRECTIVE))]
    except ValueError:
        raise ConfigError(f"a quotation is opened and not closed (in {shown})") from None


def _split(pieces: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of each command; a line that begins with a flag goes on with the one before."""
    command: list[str] = []
    inside = skip = False
    for index, piece in enumerate(pieces):
        following = pieces[index + 1] if index + 1 < len(pieces) else ""
        if skip or not piece or piece == "\\":
            skip = False
        elif not inside and _ARRAY.match(piece) and set(command) <= _EXPORTS | _BRANCHES:
            name, _, rest = piece.partition("=(")
            inside = rest.count(")") <= rest.count("(")
            command = [f"{name}={_kept(rest if inside else rest[:-1])}"]
        elif inside:
            inside = piece.count(")") <= piece.count("(")
            command[-1] += f" {_kept(piece if inside else piece[:-1])}"
        elif _REDIRECTIONS.match(piece):
            skip = True
        elif set(piece) <= _SEPARATORS:
            if set(piece) == {"\n"} and following.startswith("-"):
                continue
            yield command
            command = []
        else:
            command.append(piece)
    yield command


def _kept(word: str) -> str:
    """Return a word so that splitting gives it again; a variable stays one."""
    return word if has_variable(word) or not word.strip() else shlex.quote(word)


def _assigned(words: Sequence[str], variables: dict[str, str]) -> Iterator[str]:
    """Enter the assignments before a command into the variables; yield its words."""
    rest = list(words)
    if rest and rest[0] in _EXPORTS:
        rest.pop(0)
    while rest and (found := _ASSIGNMENT.match(rest[0])):
        before = f"{variables.get(found[1], '')} " if found[2] else ""
        value = f"{before}{replaced(found[3], variables)}"
        # What a variable says of itself before it has a value is nothing.
        variables[found[1]] = _VARIABLE.sub(lambda each: "" if found[1] in (each[1], each[3]) else each[0], value)
        rest.pop(0)
    yield from rest


def expanded(words: Iterable[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield words with what is known of their variables; one that is nothing else may be several words."""
    length = 0
    for word in words:
        if word in _FORWARDED:
            continue
        value = replaced(word, variables)
        length += len(value)
        _check_length(length)
        if is_variable(word) and value != word:
            yield from (each for each in _words_of(value) if each not in _FORWARDED)
        else:
            yield value


def _words_of(value: str) -> list[str]:
    try:
        words = shlex.split(value)
    except ValueError:
        return value.split()
    # A flag that was quoted together with its value is split where the shell replaces the variable.
    return [part for word in words for part in (word.split() if word.startswith("--") and "=" not in word else [word])]


def replaced(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with the variables that have a value, or a default of their own, and sums of them replaced."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        known = variables.get(name)
        return known if known is not None else found[2] if found[2] is not None else found[0]

    for _ in range(_ROUNDS):
        # Checked before it is written out: 100,000 times 100,000 characters are too many to write first.
        _check_length(len(text) + sum(len(variables.get(each[1] or each[3], "")) for each in _VARIABLE.finditer(text)))
        after = _VARIABLE.sub(value, text)
        if after == text:
            break
        text = after
    return _ARITHMETIC.sub(lambda found: _computed(found, variables), text)


def _check_length(length: int) -> None:
    """Refuse variables that hold others many times, over and over."""
    if length > _LONGEST:
        raise ConfigError(
            f"variables of the pasted script hold more than {_LONGEST} characters; paste what they stand for"
        )


def _computed(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return ``$((8*NODES))`` as its value; as it is where one of its names has none."""
    value: int | None = None
    for sign, word in _TERM.findall(found[1]):
        term = count_of(variables.get(word, word))
        if term is None or (value is None) != (sign == ""):
            return found[0]
        value = term if value is None else _SIGNS[sign](value, term)
    whole = value is not None and value <= LARGEST_WHOLE and not _TERM.sub("", found[1]).strip()
    return str(value) if whole else found[0]
