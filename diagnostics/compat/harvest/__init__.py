"""Makes a flag table from a release's source, read with `ast` and never imported.

`source` finds and parses modules, `evaluate` works out the expressions that build the parser, `kwargs` turns config
fields into argparse options the way a release's own `get_kwargs` does, `parser` records what is registered, and
`harvest` in `release` puts it together.
"""
