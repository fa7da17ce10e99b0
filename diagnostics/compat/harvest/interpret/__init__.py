"""Works out what a release's source says without running it: names, classes, expressions, and the bodies of functions.

`source` finds and parses modules, `values` are what an expression can amount to, and `evaluator` is the whole: it
hands itself to `calls` and `execute`, which come back to it for every expression inside. What cannot be known becomes
Unknown. Nothing here knows argparse, flags or tables.
"""
