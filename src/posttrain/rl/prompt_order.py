"""One short hash that stands for every prompt asked so far, as the curriculum's order hash does for rows."""

from collections.abc import Iterable
from hashlib import blake2b


def prompt_hash_after(order_hash: str, sample_ids: Iterable[str]) -> str:
    """The hash after a step that generated for these samples, in slot order, where it was `order_hash` before."""
    hasher = blake2b(bytes.fromhex(order_hash), digest_size=8)
    for sample_id in sample_ids:
        hasher.update(sample_id.encode() + b"\n")
    return hasher.hexdigest()
