"""What each release of an engine accepts, as data and history.

`tables/` holds flags, JSON keys and environment variables of every release, harvested; `changes.yaml` and
`dialects.yaml` hold by hand why options went and how each release's parser reads; `names.json` which parsers, backends
and loaders a release knows. `pack` makes the JSON that is shipped of the YAML. Nothing here has seen a configuration:
no input, no finding, no rule.
"""
