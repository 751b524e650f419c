"""The families of fabrics, one per file."""
