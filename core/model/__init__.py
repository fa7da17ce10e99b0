"""Loading, the project's own definitions, and the fallback through transformers."""
