"""Which files are meant by folders and patterns."""

import os
from pathlib import Path

import pytest

from traincast import api
from traincast.errors import ConfigError, FormatError
from traincast.formats.contract import FORMATS
from traincast.formats.open import expand_inputs, identify

PP4 = Path(__file__).parents[2] / "examples" / "megatron_pp4_tp2"


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.txt", ".hidden", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(paths, folder):
    return [str(path.relative_to(folder)) for path in expand_inputs(paths)]


def test_a_folder_means_its_files_sorted(folder):
    assert names([folder], folder) == ["a.txt", "b.txt"]
    assert names([folder / "deep", folder], folder) == ["deep/c.txt", "a.txt", "b.txt"]


def test_a_pattern_means_what_matches_it(folder):
    assert names([folder / "?.txt"], folder) == ["a.txt", "b.txt"]
    assert names([folder / "[b]*"], folder) == ["b.txt"]
    assert names([folder / "**" / "*.txt"], folder) == ["a.txt", "b.txt", "deep/c.txt"]
    assert names([folder / "d*"], folder) == ["deep/c.txt"]


def test_a_file_of_that_very_name_is_no_pattern(folder):
    (folder / "[b].txt").write_text("")
    assert names([folder / "[b].txt"], folder) == ["[b].txt"]


def test_files_stay_as_given(folder):
    given = [folder / "missing.txt", folder / "b.txt", folder / "b.txt"]
    assert expand_inputs(given) == given


@pytest.mark.parametrize(("name", "said"), [("*.json", "no file matches this pattern"), ("empty", "without files")])
def test_nothing_found_says_so(folder, name, said):
    (folder / "empty").mkdir()
    with pytest.raises(FormatError, match=said) as caught:
        expand_inputs([folder / name])
    assert str(caught.value).startswith(f"{folder / name}: ")


def test_what_cannot_be_looked_at_says_so(folder, monkeypatch):
    with pytest.raises(FormatError, match="cannot be read: File name too long"):
        expand_inputs([folder / ("x" * 300)])

    def refuse(*_):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(FormatError, match="cannot be read: Permission denied"):
        expand_inputs([folder])


def test_the_facade_takes_folders_and_patterns():
    whole = api.read(PP4)
    assert len(whole.inputs) == 8
    assert api.read(str(PP4 / "*rank?_*")).inputs == whole.inputs
    assert api.simulate(PP4, cluster="h100") == api.simulate(sorted(PP4.iterdir()), cluster="h100")
    assert api.inspect(PP4 / "*rank3_*").path.endswith("rank3_20240923205004.txt")
    with pytest.raises(FormatError, match="8 files"):
        api.inspect(PP4)
    with pytest.raises(ConfigError, match="no file"):
        api.expand([])


@pytest.mark.parametrize(
    "path", sorted(each for each in PP4.parent.rglob("*") if each.is_file()), ids=lambda each: each.name
)
def test_a_kind_that_is_not_asked_could_not_have_been_surer(path):
    head = path.read_bytes()[:65536].decode("utf-8-sig", errors="replace")
    said = [(kind.looks_like(head).confidence, kind) for kind in FORMATS.entries()]
    assert all(confidence <= kind.most_sure for confidence, kind in said)
    confidence, surest = max(said, key=lambda item: item[0])
    if confidence >= 0.25:
        assert identify(path) is surest
