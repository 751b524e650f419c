"""Parts of ``benchmarks/fuzz.py``: seeds of every input kind, mutations, the judge, the pool of workers."""
