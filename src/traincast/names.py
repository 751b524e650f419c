"""Names as people type them: which known one is meant, and which are near.

Case, ``-``, ``_``, ``/`` and blanks between words, and British or American spelling do not tell names apart.
"""

import re
from collections.abc import Iterable

_NEAR = 3
_MANY = 40
_MOST = 250
"""Names that a message lists where some are near, and where none is."""
_CLOSENESS = 0.6


def plain(name: str) -> str:
    """Return a name without case, blanks and dashes: ``Rail_Optimized`` as ``railoptimised``."""
    letters = re.sub(r"[-_/\s]", "", name).casefold()
    return re.sub(r"iz(e|ing|ation)", r"is\1", letters)


def find_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is meant by what was typed; None where there is none, or several would do.

    Examples
    --------
    >>> find_name("rail-optimized", ["non-blocking", "rail-optimised"])
    'rail-optimised'
    """
    names = list(known)
    if name in names:
        return name
    found = [each for each in names if plain(each) == plain(name)]
    return found[0] if len(found) == 1 else None


def known_names(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about a name that is unknown: all there are, and those that are near it.

    Of many names only their number is told, where some are near.

    Examples
    --------
    >>> known_names("h10", ["h100", "tpu-v5p"])
    'known: h100, tpu-v5p; did you mean h100?'
    """
    names = list(known)
    near = nearest(name, names)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    told = len(names) > (_MANY if near else _MOST)
    listed = f"{len(names)} names" if told else ", ".join(names) or "none"
    return f"known: {listed}{meant}"


def names_with(part: str, known: Iterable[str]) -> list[str]:
    """Return the known names that have a part in them.

    Examples
    --------
    >>> names_with("LLAMA 3", ["llama2-7b", "llama3-8b", "codellama3"])
    ['llama3-8b', 'codellama3']
    """
    wanted = plain(part)
    return [each for each in known if wanted and wanted in plain(each)]


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are most like what was typed, the most like it first.

    Examples
    --------
    >>> nearest("h10", ["a100", "h100", "tpu-v5p"])
    ['h100', 'a100']
    """
    by_plain: dict[str, str] = {}
    for each in known:
        by_plain.setdefault(plain(each), each)
    wanted = plain(name)
    import difflib  # what is known is seldom looked for in vain

    near = difflib.get_close_matches(wanted, by_plain, n=_NEAR, cutoff=_CLOSENESS) if wanted else []
    begun = [each for each in by_plain if wanted and len(wanted) > 1 and each.startswith(wanted) and each not in near]
    return [by_plain[each] for each in [*near, *begun][:_NEAR]]
