"""The server: `api` over `http` and over `engine`, the boundary to the engine's process; all use `text` and `observe`."""
