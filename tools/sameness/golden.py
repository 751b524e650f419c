"""A small sample of all results."""
from pathlib import Path
GOLDEN = Path("x")
def sampled(): return ()
def write_golden(): return None
