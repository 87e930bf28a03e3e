"""Engines: loaded models that can generate."""
