"""The release: what `engine --version`, the server and this engine's own flag table call themselves."""

__version__ = "0.1.0"
