"""Kinds of measurements, one module each: what their columns are and how each row is predicted."""
