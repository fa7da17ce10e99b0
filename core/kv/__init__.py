"""Blocks, block tables, prefix caching, copy-on-write."""
