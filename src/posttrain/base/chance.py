"""Random decisions as a hash of what they are about: the same in every process and after every restart."""

import json
from hashlib import blake2b


def chance(*decides: int | str) -> float:
    """A hash used as a random number in [0, 1), uniform over the arguments' values, with 53 bits."""
    # JSON, since plain joining would not tell (1, 23) from (12, 3).
    digest = blake2b(json.dumps(decides).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
