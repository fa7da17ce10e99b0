"""HTTP, streaming, metrics, and the boundary to the engine process."""
