"""When a waiting request may start."""
