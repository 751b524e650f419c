"""Read the ``config.json`` of a model of Hugging Face."""
