"""Measures a server by its URL, or an opened engine in-process, under a workload."""
