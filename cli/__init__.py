"""Commands: each reads arguments, calls one function and renders the result. No torch at import time."""
