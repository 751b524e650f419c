"""What public tables of runs and kernels say in words of their own: rules, remarks on rows, and how both are read."""
