"""Put a time on every operation."""
