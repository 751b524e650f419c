"""What a communication costs: algorithms as plug-ins over the links of a cluster."""
