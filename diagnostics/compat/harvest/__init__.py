"""Makes a flag table from a release's source, read with `ast` and never imported.

`interpret` works out the expressions that build the parser, `kwargs` turns config fields into argparse options the
way a release's own `get_kwargs` does, `parser` records what is registered, `refusals` reads when the front end and
the objects made of the options raise (`terms` puts the tests on the way there as conditions, `rewriting` fills in
their local names, `settings` says what they look at, `resolved` what else sets that), and `harvest` in `release` puts
it together; `fetch` and `index` get the source, `add` stores the table, `own` makes this engine's. It knows how
tables are stored (`releases`), and nothing of configurations, rules or findings.
"""
