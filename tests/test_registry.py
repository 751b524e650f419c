"""Where entries of other distributions are looked for."""

from traincast.registry import _has_plugin, _has_plugins, _plugins


def test_an_entry_of_another_distribution_is_found_where_it_is_installed(tmp_path, monkeypatch):
    here = tmp_path / "site"
    info = here / "step_table-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: step-table\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ntraincast.x = step_table:main\n")
    monkeypatch.syspath_prepend(str(here))
    assert not _has_plugin(here)
    (info / "entry_points.txt").write_text("[traincast.tables]\nstep = step_table:STEP\n")
    assert _has_plugin(here)
    _has_plugins.cache_clear()
    assert [point.value for point in _plugins("traincast.tables")] == ["step_table:STEP"]
    assert _plugins("traincast.others") == []


def test_what_is_no_folder_may_hold_distributions_and_what_is_not_there_holds_none(tmp_path):
    archive = tmp_path / "packages.zip"
    assert not _has_plugin(archive)
    archive.write_bytes(b"PK")
    assert _has_plugin(archive)
