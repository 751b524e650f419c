"""The run: price, engine, result."""
