"""The model: its shape, the blocks that its layers are made of, and where descriptions are read from."""
