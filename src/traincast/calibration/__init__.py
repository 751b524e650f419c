"""Hold the models against measurements: read them, fit constants to them, say how far off the models are."""
