"""Whether a configuration starts under a release of an engine, what changes there, and what to write instead.

From the top: `run` (the checker for callers) and `fix` (rewrites an input) stand on `check`, which asks the rooms in
turn. `inputs` reads what people wrote, `facts` knows the device and the model it is for, `releases` what each release
accepts, `rules` which combinations it refuses; `parsing` reads the configuration the way the release would, `checks`
turns what it meets into findings, and `render` prints them. `harvest` makes the tables of `releases` from a release's
source and is no part of a check. Imports go downwards in this order: run and fix, check, render, checks, parsing,
rules, facts and inputs, releases.
"""
