"""Training jobs for a GPU of one's own: their models, their loop, and what is read of the GPU meanwhile."""
