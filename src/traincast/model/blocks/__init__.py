"""The blocks that models are made of, a file each, and the parts that they yield."""
