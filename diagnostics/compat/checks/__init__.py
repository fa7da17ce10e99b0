"""What a configuration meets at a release, as findings: one file a kind of finding, over one `Context`.

`findings` holds their form, `codes` the page of each code, `context` everything the checks look at, computed once.
The checks yield findings and edits; how an input is rewritten (`fix`) or a result printed (`render`) they do not
know.
"""
