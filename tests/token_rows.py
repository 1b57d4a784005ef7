"""Data sets of token rows in memory."""

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
    """A data set in memory; `records` has the line, the weight and the content hash of each row."""
    return TokenizedDataset(name, (TokenArrays.from_rows(rows, records),), ledger, digest)
