"""THE intermediate form: operations as columns, templates tiled over microbatches and ranks."""
