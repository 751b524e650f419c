"""Published training runs: rows of CSV files as jobs with a measured step."""
