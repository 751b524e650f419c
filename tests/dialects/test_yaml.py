"""The YAML of configuration files: what is read, and what is refused with its line."""

import pytest

from traincast.dialects.yaml import parse_yaml
from traincast.errors import FormatError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("---\na: 1\nb: 'x # y' # z\n...\nleft out", {"a": 1, "b": "x # y"}),
        ("a:\n  b: [1, 2.5, 'three', null, {d: no}]\n", {"a": {"b": [1, 2.5, "three", None, {"d": False}]}}),
        ("a:\n- 1\n- b: 2\n  c: 3\n-\n  - x\nd: e", {"a": [1, {"b": 2, "c": 3}, ["x"]], "d": "e"}),
        ("a: [ # first\n  [b, []], # 'it\n  ['c', [d]],\n   ]\ne: 1_000", {"a": [["b", []], ["c", ["d"]]], "e": 1000}),
        ("lr: 1e-5\neps: 1.e-05\nname: 1.2.3\nurl: http://x/y#z\n", {"lr": 1e-5, "eps": 1e-5, "name": "1.2.3", "url": "http://x/y#z"}),
        ("t: |\n  one\n  two: 2\nf: >-\n  one\n  two\n", {"t": "one\ntwo: 2", "f": "one two"}),
        ("off: 'no'\n\"q k\": ~\nempty:\n", {"off": "no", "q k": None, "empty": None}),
        ("- a\n- [b, c]\n", ["a", ["b", "c"]]),
        ('s: "a\\tb \\"c\\""', {"s": 'a\tb "c"'}),
    ],
)  # fmt: skip
def test_what_configuration_files_say_is_read(text, value):
    assert parse_yaml(text, "x.yaml") == value


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\nb: &x 2\n", 2, "has an anchor, which is not read"),
        ("a: 1\nb: *x\n", 2, "an alias"),
        ("a: !!python/object 1\n", 1, "a tag"),
        ("a: {<<: 1}\nb: 2\n\n<<: c\n", 4, "merges another mapping"),
        ("a: 1\n\na: 2\n", 3, "is given twice"),
        ("a: {b: 1, b: 2}", 1, "twice"),
        ("a: long\n  text\n", 2, "stands deeper than its mapping"),
        ("a: 1\nnothing\n", 2, "is no 'key: value'"),
        ("a:\n\t- 1\n", 2, "tab"),
        ("a: [1, 2\nb: 3\n", 1, "not closed"),
        ("a: [1, 2}\n", 1, "brackets"),
        ("a: 'x\n", 1, "does not end"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: " + "[" * 99 + "]" * 99, 1, "nested too deeply"),
        ("".join(f"{' ' * each}a:\n" for each in range(99)), 34, "nested too deeply"),
    ],
)
def test_what_is_not_read_is_said_with_its_line(text, line, what):
    with pytest.raises(FormatError, match=what) as caught:
        parse_yaml(text, "x.yaml")
    assert f"x.yaml:{line}: " in str(caught.value)
