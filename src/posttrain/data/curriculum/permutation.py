"""A computed shuffle: the row at any position of any epoch, from the seed alone.

Python's and NumPy's generators are not used, since neither promises the same shuffle in its next version.
"""

import json
from functools import lru_cache
from hashlib import blake2b

_ROUNDS = 6
_WORD = 2**64 - 1


@lru_cache(maxsize=1024)
def round_keys(seed: int, dataset: str, epoch: int) -> tuple[int, ...]:
    """Return the six 64-bit keys that select the permutation of one data set in one epoch."""
    # JSON, since plain joining would give ("a1", 2) and ("a", 12) the same keys.
    text = json.dumps([seed, dataset, epoch])
    digest = blake2b(text.encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[start : start + 8], "little") for start in range(0, len(digest), 8))


def permute(position: int, size: int, keys: tuple[int, ...]) -> int:
    """Return the image of `position` under the permutation of range(size) that `keys` select.

    A balanced Feistel network permutes range(4**b), the next power of four; applying it again until the result is below
    `size` (cycle walking) gives a permutation of range(size), on average in 4**b / size < 4 passes.

    Source: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.

    Raises:
        IndexError: the position is not in range(size).
    """
    if not 0 <= position < size:
        raise IndexError(f"position {position} is not in range({size})")
    half_bits = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for key in keys:
            left, right = right, left ^ (mix64(right + key) & mask)
        position = left << half_bits | right
        if position < size:
            return position


def mix64(word: int) -> int:
    """Scramble a 64-bit word so that each input bit flips about half of the output bits.

    Source: the finaliser of SplitMix64, G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014, with the constants of S. Vigna's splitmix64.c.
    """
    word &= _WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _WORD
    return word ^ word >> 31
