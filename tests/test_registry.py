"""Where entries of other distributions are looked for."""

from traincast.registry import Registry


def test_an_entry_of_another_distribution_is_found_where_it_is_installed(tmp_path, monkeypatch):
    info = tmp_path / "plain_table-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-table\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[console_scripts]\ntraincast.x = plain_table:main\n[traincast.tables]\nstep = plain_table:STEP\n"
    )
    (tmp_path / "plain_table.py").write_text("STEP = 'a table of steps'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Registry("table", "traincast.sweeps.executors", group="traincast.tables")
    others = Registry("table", "traincast.sweeps.executors", group="traincast.others")
    assert (found.get("step"), others.names()) == ("a table of steps", [])
