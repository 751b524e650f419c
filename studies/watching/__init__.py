"""Real steps of healthy runs, with and without changes that were put into them."""
