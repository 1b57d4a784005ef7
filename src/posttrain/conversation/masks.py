"""Turn segments into token ids, each with a flag that says whether it is trained.

Control segments are looked up by id; header and content segments are tokenised one by one, with special tokens split,
and the ids are concatenated. Nothing else is added: no beginning-of-text token, no padding. So the mask follows from
positions, without an error-prone search for an answer's start or comparison with the padding id.

The ids equal those of tokenising the whole text at once if the tokenizer breaks between a header's newline and the
content, and no content holds the text of a special token or a character that the vocabulary cannot spell. Byte-level
BPE always breaks there if the content does not start with whitespace. If it does, GPT-2's pattern breaks there unless
the content starts with two whitespace characters or is all whitespace; Qwen's, unless the leading whitespace contains a
line break. (A control token registered to strip adjacent whitespace also makes the ids differ.) Tokenizers that put a
space before every text (sentencepiece-like) put one before each segment, so the ids are never equal. In every case
training and generation agree, since both use the same segments.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.conversation.chatml import Kind, Segment

IGNORED_LABEL = -100
"""The label that cross-entropy ignores."""


class TextEncoder(Protocol):
    """The parts of a tokenizer that are needed here."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, with special tokens in it split into ordinary ones, and none added."""
        ...

    def control_id(self, token: str) -> int:
        """Id of a control token; `encode` never returns it."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation: token ids, and for each whether it is trained."""

    ids: list[int]
    trained: list[bool]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.trained):
            raise ValueError(f"{len(self.ids)} ids, but {len(self.trained)} flags")


def encode_rows(rows: Sequence[Sequence[Segment]], encoder: TextEncoder) -> list[TokenRow]:
    """Encode many rows with one call of the encoder, which gets each distinct text once."""
    segments = [segment for row in rows for segment in row]
    texts = list(dict.fromkeys(s.text for s in segments if s.kind is not Kind.CONTROL))
    # Two tables, since content may be spelled like a control token.
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
    """Number of trained tokens in the row that end a turn."""
    return sum(trained and token in end_ids for token, trained in zip(row.ids, row.trained, strict=True))
