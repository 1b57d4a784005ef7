"""Seeds of samples, derived from what tells one sample from another."""

import hashlib


def derive_seed(*parts: int) -> int:
    """A seed of 56 bits that depends on all of `parts`: (seed, generation, slot, sample), say."""
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
