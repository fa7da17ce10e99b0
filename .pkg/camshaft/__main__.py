"""`python -m camshaft` is the `engine` command."""

from .cli.main import main

main()
