"""Hash of JSON values."""

import hashlib
import json
from collections.abc import Mapping


def described_hash(parts: Mapping[str, object]) -> str:
    """Hash of named JSON values, as 32 hex digits; the order of the names does not count."""
    described = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
