"""What a page opens with: a job in its form, or files that are explained."""

import base64
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from traincast.files import read_bytes
from traincast.serve.records.explanations import FilesRecord
from traincast.serve.records.forms import PastedJob, TextRecord
from traincast.serve.tasks import OPENED, LongTasks
from traincast.serve.wire import FILES, WorkerCall
from traincast.serve.workers import Workers

_MOST_BYTES = 2**20
"""Of a file that may describe a job."""


async def fragment_of(files: Sequence[Path], workers: Workers, tasks: LongTasks) -> str:
    """Return the state of a page that opens with files, as the fragment of its address; empty without files."""
    if not files:
        return ""
    reading = await _job_of(files, workers)
    if reading is not None:
        return _fragment({"view": "forecast", "scenarios": [{"name": "A", "job": reading.job}], "at": 0})
    task = tasks.new(OPENED)
    names = _copied(files, task.folder / FILES)
    tasks.start(task, "explain", msgspec.json.encode(FilesRecord(files=tuple(names))))
    return _fragment({"view": "explain", "look": {"explain": {"task": task.id, "name": files[0].name}}})


async def _job_of(files: Sequence[Path], workers: Workers) -> PastedJob | None:
    """Return the job that the only file describes; None where it describes none."""
    path = files[0]
    if len(files) > 1 or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return None
    content = read_bytes(path)
    if b"\0" in content or b'"traincast.result/' in content[:4096]:
        return None
    asked = TextRecord(text=content.decode("utf-8", "replace"), name=path.name)
    told = await workers.run(WorkerCall("read", msgspec.json.encode(asked)))
    if told.kind != "done":
        return None
    found = msgspec.json.decode(told.body, type=PastedJob)
    # The arguments in a log are a job, too, but who names a log asks of the log.
    return None if found.what == "description of a job" else found


def _copied(files: Sequence[Path], folder: Path) -> list[str]:
    """Copy files and folders, and return their names below the folder."""
    folder.mkdir(mode=0o700)
    found: list[str] = []
    for path in files:
        name = path.resolve().name
        if path.is_dir():
            shutil.copytree(path, folder / name)
            found += sorted(
                each.relative_to(folder).as_posix() for each in (folder / name).rglob("*") if each.is_file()
            )
        else:
            shutil.copyfile(path, folder / name)
            found.append(name)
    return found


def _fragment(state: object) -> str:
    """Return a state as the page writes it: base64url of its JSON."""
    return "#" + base64.urlsafe_b64encode(msgspec.json.encode(state)).decode("ascii").rstrip("=")
