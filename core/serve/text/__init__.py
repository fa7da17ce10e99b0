"""From the engine's tokens to text that may go out."""
