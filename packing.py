"""Pack the shipped tables while a wheel is built: of half a megabyte of text a third is installed.

Only wheels hold them packed. Sources, sdist and an editable installation have the text itself, and
`traincast.shipped.shipped_text` reads either.
"""

import gzip
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA = Path("src/traincast/data")


class PackedData(BuildHookInterface[Any]):
    """The build hook, which ``pyproject.toml`` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put a packed file in the place of each table; the same text gives the same bytes."""
        if version == "editable":
            return
        root = Path(self.root)
        self.packed = tempfile.TemporaryDirectory()
        for file in sorted(path for path in (root / DATA).rglob("*") if path.is_file()):
            name = f"{file.relative_to(root / DATA).as_posix()}.gz"
            packed = Path(self.packed.name, name)
            packed.parent.mkdir(parents=True, exist_ok=True)
            packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
            build_data["force_include"][str(packed)] = f"traincast/data/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 a hook's
        """Remove what was packed."""
        if version != "editable":
            self.packed.cleanup()
