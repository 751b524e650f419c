"""A value of a table is of the type, the unit and the range of its field, or refused with its path and the file."""

import pytest
from msgspec import Struct

from traincast import tables
from traincast.errors import ConfigError, UnknownNameError
from traincast.tables import Shelf, Value, built, read_table


class Thing(Struct, frozen=True):
    rate_bytes_per_s: float
    gpus: int = 1
    base_latency_s: float = 0.0
    sizes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    kind: str = ""
    ideal: bool = False
    nodes: int | str | None = None

    def __post_init__(self):
        if self.gpus == 13:
            raise ConfigError("is unlucky", "gpus")


def thing(**table):
    values = read_table(Thing, table, "x.toml", "thing.", choices={"kind": ("mesh", "fat-tree")})
    return built(Thing, values, "x.toml", "thing.")


def test_values_have_the_unit_of_their_name_and_one_spelling():
    found = thing(
        rate_bytes_per_s="8Gb/s", gpus=8.0, base_latency_s="3us", sizes=4, names=["a"], kind="Fat Tree", nodes="all"
    )
    assert found == Thing(1e9, 8, 3e-6, (4,), ("a",), "fat-tree", nodes="all")
    assert type(found.gpus) is int
    assert thing(rate_bytes_per_s=2).rate_bytes_per_s == 2


def test_a_number_keeps_its_source_and_nothing_else_has_one():
    table = {
        "rate_bytes_per_s": {"value": "8Gb/s", "source": "May"},
        "gpus": 8,
        "kind": {"value": "mesh"},
        "sizes": [1, 2],
    }
    values = read_table(Thing, table, "x.toml")
    assert values["rate_bytes_per_s"] == Value(1e9, "May")
    assert (values["gpus"].source, values["sizes"].source, values["kind"].source) == ("set in x.toml",) * 2 + (None,)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "thing.rate_bytes_per_s: is missing; give it (in x.toml)"),
        ({"rates": 1}, "thing.rates: is unknown; known: rate_bytes_per_s"),
        ({"rate_bytes_per_s": 0}, "thing.rate_bytes_per_s: is 0; it must be"),
        ({"rate_bytes_per_s": "fast"}, "thing.rate_bytes_per_s: 'fast' is not a rate; write it like 300GB/s"),
        ({"rate_bytes_per_s": True}, "it must be a number or a text with its unit (in x.toml)"),
        ({"rate_bytes_per_s": {"value": 1, "from": "May"}}, 'must be a value, or { value = ..., source = "..." }'),
        ({"gpus": 1.5}, "thing.gpus: is 1.5; it must be a whole number from 1"),
        ({"gpus": "8"}, "thing.gpus: is '8'; it must be a whole number (in x.toml)"),
        ({"gpus": 13, "rate_bytes_per_s": 1}, "gpus: is unlucky (in x.toml)"),
        ({"sizes": [1, "a"]}, "thing.sizes: "),
        ({"sizes": "4"}, "thing.sizes: is '4'; it must be a list of whole numbers"),
        ({"names": "a"}, "thing.names: is 'a'; it must be a list of texts"),
        ({"names": ["a", 1]}, "it must be a list of texts"),
        ({"kind": "ring"}, "thing.kind: is 'ring'; known: mesh, fat-tree"),
        ({"kind": 3}, "thing.kind: is 3; it must be a text"),
        ({"ideal": 1}, "thing.ideal: is 1; it must be true or false"),
        ({"nodes": [1]}, "thing.nodes: is [1]; it must be a whole number"),
    ],
)
def test_what_is_wrong_is_one_message_with_its_path_and_file(table, said):
    with pytest.raises(ConfigError) as refused:
        thing(**table)
    assert said in str(refused.value)
    assert str(refused.value).count("x.toml") == 1
    with pytest.raises(ConfigError, match="thing: is 3; it must be a table"):
        read_table(Thing, 3, "x.toml", "thing.")


def test_a_zero_that_is_the_default_or_allowed_is_taken():
    assert thing(rate_bytes_per_s=1, base_latency_s=0).base_latency_s == 0
    assert read_table(Thing, {"gpus": 1, "sizes": 0}, "x.toml", positive=False)["sizes"] == Value((0,), "set in x.toml")


def test_a_shelf_knows_its_files_and_their_bases(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_DATA", tmp_path)
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "plain.toml").write_text("gpus = 1\n")
    (tmp_path / "own.toml").write_text('base = "Plain"\ngpus = 2\n')
    shelf = Shelf("thing", "things")
    assert (shelf.names(), shelf.find("PLAIN"), shelf.find("none")) == (["plain"], "plain", None)
    own = shelf.find(str(tmp_path / "own.toml"))
    assert shelf.read(own) == ({"gpus": 2}, "plain")
    assert shelf.read("plain") == ({"gpus": 1}, None)
    (tmp_path / "own.toml").write_text('base = "other"\n')
    with pytest.raises(UnknownNameError, match=r"unknown base thing \(in .*own.toml\) 'other'; known: plain"):
        shelf.read(own)
