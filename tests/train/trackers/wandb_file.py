"""Read the file in which W&B keeps a run offline: records of its protocol in the log format of LevelDB.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, with a header of seven bytes.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 32_768


def records(file: Path) -> Iterator[Any]:
    """The records, each of which is one of many kinds of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports]

    content, place, whole = file.read_bytes(), _HEADER, b""
    while place < len(content):
        left = _BLOCK - place % _BLOCK
        if left < 7:  # too few bytes for another part in this block
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)  # after the checksum
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record in one part, or the last part of one
            yield Record.FromString(whole)
            whole = b""
