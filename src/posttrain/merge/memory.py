"""Give freed memory back to the system."""

import ctypes
import sys


def return_freed_memory() -> None:
    """Have the C library return what it keeps of freed memory; nothing happens where it has no such call.

    glibc keeps freed blocks of up to 32 MiB for later, and tensors of many sizes leave it with few that fit again:
    a merge of 2 GB was seen to hold on to 1.7 GB.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and keeps nothing either
    if trim is not None:
        trim(0)
