"""Forecast one step of distributed LLM training."""
