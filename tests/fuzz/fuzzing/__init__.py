"""Parts of ``tests/fuzz/fuzz.py``: seeds of every input kind, mutations, the judge, the pool of workers."""
