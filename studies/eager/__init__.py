"""Whole fp32 models that PyTorch runs eagerly, kernel by kernel: the labels of NeuSight (arXiv 2407.13853)."""
