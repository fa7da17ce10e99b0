"""The boundary to the engine process: its loop, the line to it, and who waits for what it says."""
