"""Turn segments into token ids, each with a flag that says whether it is trained.

Control segments are looked up by id; header and content are tokenised each on its own, with special tokens
split, and put one after the other. Nothing else is added: no beginning-of-text token, no padding. So the mask
is known by position, and no search for an answer's start, no comparison with the padding id can go wrong.

The ids are those of tokenising the whole text at once wherever the tokenizer itself breaks between a header's
newline and the content, and no content holds the text of a special token or what the vocabulary cannot spell.
For byte-level BPE it always breaks there if the content starts with no whitespace. Beyond that, GPT-2's
pattern breaks there unless the content starts with two whitespace characters or is all whitespace; Qwen's,
unless the whitespace that the content starts with has a line break in it. (A control token registered to
swallow the whitespace beside it breaks the equality too.)
Tokenizers that put a blank before every text (sentencepiece-like) put one before each segment: never equal.
In every case training and generation agree, since both are made of the same segments.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.conversation.chatml import Kind, Segment

IGNORED_LABEL = -100
"""The label that cross-entropy passes over."""


class TextEncoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text: special tokens in it split into ordinary ones, none added."""
        ...

    def control_id(self, token: str) -> int:
        """Id of a control token; an id that `encode` never gives."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation: `ids` and `trained` are of the same length, in tokens."""

    ids: list[int]
    trained: list[bool]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.trained):
            raise ValueError(f"{len(self.ids)} ids, but {len(self.trained)} flags")


def encode_rows(rows: Sequence[Sequence[Segment]], encoder: TextEncoder) -> list[TokenRow]:
    """Many rows by one call of the encoder, in which every text occurs once."""
    segments = [segment for row in rows for segment in row]
    texts = list(dict.fromkeys(s.text for s in segments if s.kind is not Kind.CONTROL))
    # Two tables: a content may be spelled like a control token.
    text_ids = dict(zip(texts, encoder.encode(texts), strict=True))
    controls = dict.fromkeys(s.text for s in segments if s.kind is Kind.CONTROL)
    control_ids = {token: [encoder.control_id(token)] for token in controls}

    encoded = []
    for row in rows:
        ids: list[int] = []
        trained: list[bool] = []
        for segment in row:
            new = (control_ids if segment.kind is Kind.CONTROL else text_ids)[segment.text]
            ids += new
            trained += [segment.trained] * len(new)
        encoded.append(TokenRow(ids, trained))
    return encoded


def trained_ends(row: TokenRow, end_ids: Collection[int]) -> int:
    """How many trained tokens of the row end a turn."""
    return sum(trained and token in end_ids for token, trained in zip(row.ids, row.trained, strict=True))
