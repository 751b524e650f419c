"""Values that break readers: boundaries of integers and floats, other texts, and what steers terminals."""

import random

LONG = "A" * 5000
"""A long value; the judge looks for a long piece of it in what is printed."""

NUMBERS = (
    *("0", "-1", "1", "-0.0", "0.5", "3", "1e-9", "1e308", "1e-320", "1e400", "nan", "inf", "-inf"),
    *("2147483647", "2147483648", "4294967296", "9007199254740991", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "-9223372036854775809", "1e18", "9" * 400, "9" * 5000),
)
"""Boundaries; most readers should refuse most of them."""
TEXTS = (
    *("", " ", LONG, "None", "null", "true", "\u0663", "\uff11\uff12", "1_000", "0x10", "+5", "5 5", "1,5", "1e", "--"),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x00", "\r", "\u202etxt", "\ud7ff\ufffe", "\ufeff", "=cmd|'x'!A1"),
    *("[bold]x[/]", "{}", "[]", "'", '"', "/", "..", "nowhere/at/all", "%s", "a=b", "#", "\\", "\t", "\n", "\u00e9"),
)
PATHS = (".", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/dev", "nowhere/at/all", "*", "[", "w.txt", "c.toml")
"""What is not a file to read, or has no end."""
SMALL = ("1", "2", "3", "4", "5", "6", "7", "8", "12", "16", "32", "64", "100", "128", "1024", "2048", "4096")
"""Numbers that most fields take: what comes after a reader is reached with these."""


def number(rng: random.Random) -> str:
    """Return a boundary, or half as often a number that is likely right."""
    return rng.choice(SMALL) if rng.random() < 0.33 else rng.choice(NUMBERS)


def value(rng: random.Random) -> str:
    """Return any value."""
    return rng.choice(TEXTS) if rng.random() < 0.4 else number(rng)


def near(text: str, rng: random.Random) -> str:
    """Return a number that is near another in some way: scaled, of another sign, one more or less; or a boundary."""
    try:
        given = float(text)
    except ValueError:
        return value(rng)
    if rng.random() < 0.4:
        return value(rng)
    factor = rng.choice((0.5, 2, 10, 1000, 1e6, 1e9, 1e12, 1e-3, 1e-9, -1))
    changed = rng.choice((given * factor, given + 1, given - 1, given + 0.5))
    whole = abs(changed) < 1e300 and changed == int(changed) and "." not in text
    return str(int(changed)) if whole else repr(changed)
