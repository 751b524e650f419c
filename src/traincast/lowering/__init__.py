"""From a job to a workload: which operators and communications every stage runs."""
