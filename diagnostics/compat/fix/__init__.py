"""Rewrites an input for a release by the edits of its findings, and judges the new text again before it is kept.

`plan` decides, `words` edits options where they stand in a command, `settings` the keys of a settings file or of a
call in Python, `cut` says what goes with what is taken out. Which edit mends what is decided in `checks`; nothing
here knows a flag by name.
"""
