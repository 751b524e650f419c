"""Mechanisms of training: what each adds to the memory of a rank and to the update, said once, on numbers or arrays."""
