"""Camshaft: an LLM serving engine that explains itself."""

from .core.version import __version__ as __version__
