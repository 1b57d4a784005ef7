"""The system calls that a sandboxed program may not make, as a filter that Linux takes (seccomp).

What is refused reaches other processes, or stays when the program is gone: signals, the memory of others, the
kernel's keyring, new namespaces, and queues and shared memory that belong to nobody. None of it is of use to a program
that reads its input and prints.
"""

import platform
import struct
import sys

# On x86-64 and on 64-bit ARM.
_REFUSED = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),  # its calls are made where no filter sees them
}
# Where a machine's numbers stand above, and how the kernel calls it.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD_WORD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE = 0, 4  # offsets in what the kernel shows the filter
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | 1  # with EPERM
# From here on x86-64 has the same calls once more, under other numbers.
_SECOND_SET = 0x40000000


def call_filter() -> bytes:
    """The filter for this machine; empty where there is none: not on Linux, or on another kind of processor."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return b""
    column, machine = _MACHINES[platform.machine()]
    numbers = [numbers[column] for numbers in _REFUSED.values()]
    steps = [(_IF_AT_LEAST, _SECOND_SET), *((_IF_EQUAL, number) for number in numbers)]
    # A step that holds jumps over those that are left and over the one that allows.
    jumps = [_step(code, value, if_so=len(steps) - place) for place, (code, value) in enumerate(steps)]
    return b"".join(
        [
            _step(_LOAD_WORD, _MACHINE),
            _step(_IF_EQUAL, machine, if_so=1),
            _step(_RETURN, _FAIL),
            _step(_LOAD_WORD, _NUMBER),
            *jumps,
            _step(_RETURN, _ALLOW),
            _step(_RETURN, _FAIL),
        ]
    )


def _step(code: int, value: int, if_so: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, 0, value)
