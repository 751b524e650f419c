"""What is held against measurements, a module a subject: each has `boards()`, which forecasts and returns boards."""
