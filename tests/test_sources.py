"""What the code and its data name as a source in this repository is there for whoever cloned it."""

import re
from pathlib import Path

import traincast

ROOT = Path(__file__).parents[1]
TREES = (Path(traincast.__file__).parent, *(ROOT / name for name in ("studies", "benchmarks", "tools", "docs")))
PAGE = re.compile(
    r"(?<![\w./-])(?:docs|studies|benchmarks|tools|tests|examples)/[\w./-]*\w\.(?:md|py|toml|csv\.gz|csv)\b"
)
ELSEWHERE = {
    "docs/alps/hardware.md",
    "docs/source/performance/performance_summary.md",
    "docs/performance-summary.md",
    "docs/Tutorial.md",
    "tests/functional_tests/python_test_utils/get_test_results_from_tensorboard_logs.py",
}
"""Pages of other repositories, which are named beside them: cscs-docs, NeMo, Megatron-Bridge, SimAI, Megatron-LM."""
OUTSIDE = re.compile(r"\bresearch/|\.\./shared|accuracy[_ ]prototype|measured[_ ]runs[_ ]notes")
"""Folders of no clone: nothing may rest on what stands there."""


def files():
    for tree in TREES:
        for path in sorted(tree.rglob("*")):
            if path.suffix in (".py", ".toml", ".csv", ".md") and "__pycache__" not in path.parts:
                yield path


def test_every_page_and_script_that_is_cited_is_in_the_repository():
    missing = set()
    for path in files():
        for cited in PAGE.findall(path.read_text(encoding="utf-8")):
            if not (ROOT / cited).exists() and cited not in ELSEWHERE:
                missing.add((str(path), cited))
    assert not missing


def test_nothing_rests_on_what_is_outside_of_it():
    found = [
        f"{path}:{number}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if OUTSIDE.search(line)
    ]
    assert not found
