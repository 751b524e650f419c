"""The best layouts of a model on a cluster: the whole space on arrays, then the best of it simulated."""
