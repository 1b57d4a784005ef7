"""In-memory datasets of token rows."""

from collections.abc import Sequence

from posttrain.conversation.masks import TokenRow
from posttrain.data.ledger import Ledger
from posttrain.data.token_arrays import TokenArrays
from posttrain.data.tokenized import TokenizedDataset


def from_rows(
    name: str,
    rows: Sequence[TokenRow],
    records: Sequence[tuple[int, float, int]],
    ledger: Ledger,
    digest: str,
) -> TokenizedDataset:
    """An in-memory dataset; `records` has each row's line, weight and content hash."""
    return TokenizedDataset(name, (TokenArrays.from_rows(rows, records),), ledger, digest)
