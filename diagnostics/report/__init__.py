"""A diagnosis as text, as JSON and as one self-contained page."""
