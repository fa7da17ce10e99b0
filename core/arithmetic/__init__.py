"""A model on paper: shapes, bytes, and where a device's memory goes. Torch-free."""
