"""Which combinations of options, environment, model and device a release refuses, overrides or ignores.

A rule is a record under `vllm/` (README.md tells the form). `records` loads them, `conditions` is their language and
`phrasing` its words, `scope` gives its names a meaning for one configuration, `evaluate` finds the rules it meets,
`resolvers` and `memory` compute the defaults and the start-up memory they ask for. For their upkeep: `pack` compiles
the YAML, `locate`, `verify` and `evidence` keep the file and line of each rule's code in every release. Rules see
parsed values and facts alone: no words, no places, no findings.
"""
