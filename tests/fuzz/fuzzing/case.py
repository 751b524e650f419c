"""What is tried: files and a command over them."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The repository."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A sound input: files, and the commands that take them.

    Parameters
    ----------
    files : dict
        Name to content; a name may have a folder in it.
    commands : tuple of tuple of str
        Arguments of ``traincast``, run in the folder of the files. Each must end with exit code 0.
    damaged : tuple of str, optional
        Names of the files that mutations may damage; all by default.
    """

    files: dict[str, bytes]
    commands: tuple[tuple[str, ...], ...]
    damaged: tuple[str, ...] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the files that mutations may damage."""
        return tuple(self.files) if self.damaged is None else self.damaged


@dataclass(frozen=True, slots=True)
class Case:
    """One input to try.

    Parameters
    ----------
    kind : str
        Kind of input, a key of `fuzzing.seeds.SEEDS`.
    number : int
        Which one of its kind; kind, number and the seed of the run decide everything about it.
    files : dict
        Name to content.
    arguments : tuple of str
        Of ``traincast``.
    """

    kind: str
    number: int
    files: dict[str, bytes]
    arguments: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the files and characters of the command: less is a better reproducer."""
        return sum(map(len, self.files.values())) + sum(map(len, self.arguments))

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
