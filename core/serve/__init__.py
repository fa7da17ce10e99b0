"""The server: `api` over `http`, and over the boundary to the engine process."""
