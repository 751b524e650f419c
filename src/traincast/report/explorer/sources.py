"""Scripts and styles of the explorer: put together, and as a module for a page that shows other things, too."""

import re
from collections.abc import Sequence

from traincast.shipped import shipped_text

EXPLORER = ("shared", "store", "colours", "timeline", "panels", "trace", "explorer")
"""Scripts of a page that explores a step, in the order they run."""


def explorer_module() -> str:
    """Return the explorer as an ES module, for a page that puts a timeline among other things."""
    script = joined(EXPLORER, "js")
    names = re.findall(r"^(?:async )?(?:class|function|const) (\w+)", script, re.MULTILINE)
    return f"{script}\nexport {{ {', '.join(names)} }};\n"


def explorer_style() -> str:
    """Return the colours and the style of what `explorer_module` draws, in elements of the class ``explorer``."""
    return joined(("palette", "parts"), "css")


def joined(names: Sequence[str], kind: str) -> str:
    """Return several files of one kind as one text."""
    return "\n".join(source(f"{name}.{kind}") for name in names)


def source(name: str) -> str:
    """Return the text of a file of the explorer."""
    return shipped_text(f"explorer/{name}")
