"""Show a result: terminal, JSON, CSV, Chrome trace."""
