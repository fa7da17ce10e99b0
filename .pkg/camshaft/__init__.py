"""Camshaft: an LLM serving engine that explains itself."""

__version__ = "0.1.0"
