"""From a configuration to what a release's own parser makes of it, mistakes included.

`arguments` turns keys and words into the arguments the parser sees, `parser` matches them with the release's table,
`conversion` reads the values. It says what was parsed and what was not, and judges nothing: severities, fixes and
messages are for `checks`.
"""
