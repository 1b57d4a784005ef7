"""The cache folder, which holds converted models and tokenised data between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$POSTTRAIN_TOOLKIT_CACHE`, else `posttrain-toolkit` in the user's cache folder."""
    named = os.environ.get("POSTTRAIN_TOOLKIT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "posttrain-toolkit"
