"""Where the measured tables lie that the studies read: packed in `studies/data`, whose README has their sources."""

import gzip
from pathlib import Path

DATA = Path(__file__).parent / "data"


def table_path(name: str, folder: Path = DATA) -> Path:
    """Return the file of a table, packed or not.

    Parameters
    ----------
    name : str
        ``measured_training_runs.csv``.
    folder : Path
        Where to look.

    Raises
    ------
    FileNotFoundError
        If it is there neither as it is nor with ``.gz`` behind its name.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    found = next((path for path in (plain, packed) if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{plain} is missing, and {packed.name} too; say with --data where it is")
    return found


def unpack(names: list[str], into: Path, folder: Path = DATA) -> None:
    """Write tables without their packing into a folder.

    Parameters
    ----------
    names : list of str
        As of `table_path`.
    into : Path
        An empty folder.
    folder : Path
        Where to look.
    """
    for name in names:
        source = table_path(name, folder)
        data = source.read_bytes()
        (into / name).write_bytes(gzip.decompress(data) if source.suffix == ".gz" else data)
