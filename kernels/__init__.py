"""The arithmetic on the device: one op a folder, several implementations side by side.

Knows tensors and nothing else of the project. Each op's `__init__.py` is its contract.
"""
