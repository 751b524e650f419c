"""SIMULATE: durations in, times out. Knows arrays and errors only."""
