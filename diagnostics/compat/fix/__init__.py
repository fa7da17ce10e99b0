"""Rewrites an input for a release by the edits of its findings, and judges the new text again before it is kept.

`plan` decides and edits words where they stand, `cut` says what goes with what is taken out, `settings` edits the keys
of a settings file. Which edit mends what is decided in `checks`; nothing here knows a flag by name.
"""
