"""Build wheel and sdist twice, compare them, and try the wheel on its own.

    python tools/distribution.py [--out DIR] [--tests [PYTEST OPTIONS AND PATHS...]]

Both builds take the time of the last commit (``SOURCE_DATE_EPOCH``) and must agree byte for byte; so must the wheel
that is built from the unpacked sdist. The wheel is then installed from its file into a new environment and runs a
bundled example; with --tests, tests run on it, too: those that pytest takes with the options and paths that follow,
from the unpacked sdist without its sources, so that nothing but the wheel can be imported. The wheel must hold every
file of the package. Needs `build` (in the extra ``dev``).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def built(source: Path, out: Path, epoch: str, *kinds: str) -> dict[str, str]:
    """Build into a folder and return the SHA-256 of each file by its name."""
    call(sys.executable, "-m", "build", "-q", *kinds, "--outdir", out, source, environment={"SOURCE_DATE_EPOCH": epoch})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def call(*words: object, folder: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def left_out(wheel: Path) -> set[str]:
    """Return the files of the package that a wheel lacks."""
    folder = ROOT / "src"
    files = (path for path in (folder / "traincast").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    with zipfile.ZipFile(wheel) as packed:
        return {path.relative_to(folder).as_posix() for path in files} - set(packed.namelist())


def last_commit() -> str:
    """Return when the last commit was made; a copy that is not a repository has its own time."""
    try:
        return call("git", "log", "-1", "--format=%ct").strip()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return "1700000000"


def try_wheel(wheel: Path, unpacked: Path, folder: Path, tests: list[str] | None) -> None:
    """Install a wheel by its file and run an example; unless `tests` is None, run pytest so in the unpacked sdist."""
    venv.create(folder / "new", with_pip=True)
    python = folder / "new" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", wheel if tests is None else f"{wheel}[dev]")
    step = call(python, "-m", "traincast.cli", "predict", ROOT / "examples" / "llama3_70b_512gpu.toml", folder=folder)
    print(step.splitlines()[0])
    if tests is None:
        return
    shutil.rmtree(unpacked / "src")
    home = call(python, "-c", "import traincast; print(traincast.__file__)", folder=unpacked).strip()
    if not Path(home).is_relative_to(folder / "new"):
        sys.exit(f"the tests would run on {home}, not on the wheel")
    # What fails is to be read where it is printed.
    # By file, so that what the tests of a file share is made once.
    words = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *tests]
    subprocess.run(words, cwd=unpacked, check=True)


def main() -> int:
    """Build, compare, try; return the exit code."""
    parser = argparse.ArgumentParser(description="build twice, compare, and try the wheel on its own")
    parser.add_argument("--out", type=Path, help="keep wheel and sdist there")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, help="test the installed wheel; what follows is pytest's")
    given = parser.parse_args()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or last_commit()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        out = given.out.resolve() if given.out else folder / "first"
        first = built(ROOT, out, epoch)
        with tarfile.open(next(out.glob("*.tar.gz"))) as packed:
            packed.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        second = built(ROOT, folder / "second", epoch)
        again = built(unpacked, folder / "third", epoch, "--wheel")
        for name, digest in first.items():
            print(f"{digest}  {name}")
        if second != first or not again.items() <= first.items():
            print("the same sources gave other bytes", file=sys.stderr)
            return 1
        wheel = next(out.glob("*.whl"))
        if missing := left_out(wheel):
            print(f"the wheel lacks {', '.join(sorted(missing))}", file=sys.stderr)
            return 1
        try_wheel(wheel, unpacked, folder, given.tests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
