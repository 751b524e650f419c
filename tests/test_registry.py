"""Where entries of other distributions are looked for."""

import shutil
import subprocess
import sys

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


def test_archives_have_entries_too_and_where_nobody_offers_one_nothing_is_loaded_that_reads_them(tmp_path):
    """A process of its own: what is installed is looked for once."""
    code = """
import sys
from traincast.registry import Registry
print(Registry("table", "traincast.sweeps.executors", group="traincast.tables").names(), "email" in sys.modules)
"""

    def told(*folders):
        code_there = f"import sys; sys.path += {list(map(str, folders))!r}\n{code}"
        return subprocess.run([sys.executable, "-c", code_there], capture_output=True, text=True, check=True).stdout

    info = tmp_path / "packages" / "plain_table-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-table\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ntraincast.x = plain_table:main\n")
    assert told(info.parent, tmp_path / "gone") == "[] False\n"
    (info / "entry_points.txt").write_text("[traincast.tables]\nstep = plain_table:STEP\n")
    (info.parent / "plain_table.py").write_text("STEP = 'a table of steps'\n")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", info.parent)
    for folder in (info.parent, archive):
        assert told(folder) == "['step'] True\n"
