"""Results, comparisons, validations and more for people, on a terminal of 80 columns or more."""
