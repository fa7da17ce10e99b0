"""Where this package keeps what it can make again: machine code, fetched models, the sheet of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$CAMSHAFT_CACHE`, else `$XDG_CACHE_HOME/camshaft`, else `~/.cache/camshaft`. Not created here.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG base directory specification asks. Raises RuntimeError
    where the user has no home folder.
    """
    own = os.environ.get("CAMSHAFT_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(xdg) if xdg and os.path.isabs(xdg) else Path.home() / ".cache"
    return root / "camshaft"
