"""Is a run as fast as it should be: its steps judged, watched while they are logged, and held against a forecast."""
