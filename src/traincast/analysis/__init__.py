"""What the times mean: who owns every instant of the step."""
