"""The most memory that this process had."""

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """The highest resident size so far.

    Linux hands the peak that `getrusage` tells down to a process from the one that started it, so that a run started
    from a notebook would have the notebook's; the one in /proc begins anew with a program.
    """
    if _STATUS.is_file() and (found := re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return told if sys.platform == "darwin" else told * 1024  # macOS tells bytes, all others KiB
