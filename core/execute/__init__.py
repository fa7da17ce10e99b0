"""The contract of an executor, and torch's; the virtual one lives in diagnostics."""
