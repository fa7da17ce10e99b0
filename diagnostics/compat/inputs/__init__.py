"""What people wrote: settings files, commands, scripts, Dockerfiles and manifests become configurations.

Every word, key and variable of a configuration knows its place, so that a finding can point at it and a fix can
rewrite it. The readers know how servers are started, and of releases only which names were ever options, to tell
settings from other YAML: which of them a release takes is not theirs to judge. Those of shell text and manifests are
imported when an input needs them: a settings file does not.
"""
