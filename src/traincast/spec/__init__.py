"""WHAT the user describes, as frozen dataclasses, and how it is read."""
