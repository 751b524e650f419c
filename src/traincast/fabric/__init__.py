"""Nodes and links: where ranks sit and what lies between them."""
