"""Tokenise texts without turns for continued pre-training, in chunks that lose no token.

A text is encoded as its tokenizer begins and ends texts: with its begin token, if it adds one, and its end token. Every
chunk begins with the last token of the one before it, which is not trained there: so each token of a text but the
first is predicted exactly once. Control tokens typed in a text stay text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from posttrain.base.cache import cache_dir
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import OnBadRecord, TextsConfig
from posttrain.conversation.encoder import HfTextEncoder
from posttrain.conversation.masks import TokenRow
from posttrain.data import tokenized
from posttrain.data.ledger import Ledger
from posttrain.data.preparation import Numbered, SideRows, prepare_rows, tokenizer_digest
from posttrain.data.readers.texts import open_texts
from posttrain.data.splits import text_hash
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import ModelError


def prepare_texts(
    name: str,
    config: TextsConfig,
    chat: ChatConfig,
    tokenizer: Any,
    on_bad_record: OnBadRecord,
    report: Callable[[str], None] = lambda line: None,
) -> TokenizedDataset:
    """The chunks of one data set, from the cache if the same inputs were prepared before.

    Raises:
        DataError: there are bad records and `on_bad_record` is error, or no text.
        ModelError: the tokenizer has no end token.
    """
    examples = open_texts(config)
    key = tokenized.cache_key(
        {
            "texts": examples.digest,
            "column": config.column,
            "max_length": chat.max_length,
            "tokenizer": tokenizer_digest(tokenizer),
            "on_bad_record": on_bad_record,
        }
    )
    folder = cache_dir() / "tokenized" / key

    def encoding(ledger: Ledger) -> Callable[[Numbered[str]], SideRows]:
        encoder = TextRowEncoder(tokenizer, chat.max_length)
        return lambda batch: _encoded(batch, encoder, ledger)

    dataset = prepare_rows(name, config.path, examples, folder, encoding, on_bad_record, report)
    dataset.ledger.require_something_to_learn(chat.min_end_tokens_kept)
    return dataset


def end_of_text(tokenizer: Any) -> int:
    """The token that ends a text; ModelError if the tokenizer has none."""
    if tokenizer.eos_token_id is None:
        raise ModelError("type: text: the tokenizer has no end token (eos_token), which ends each text")
    return tokenizer.eos_token_id


class TextRowEncoder:
    """Encodes texts as chunks of at most `max_length` tokens.

    Attributes:
        end_id: the token that ends a text.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.end_id = end_of_text(tokenizer)
        self._encoder, self._max_length = HfTextEncoder(tokenizer), max_length
        (plain,) = self._encoder.encode(["a"])
        with_added = tokenizer("a")["input_ids"]
        self._begin = with_added[: with_added.index(plain[0])] if plain[0] in with_added else []

    def rows(self, texts: Sequence[str]) -> list[list[TokenRow]]:
        """The chunks of each text."""
        return [
            list(chunks([*self._begin, *ids, self.end_id], self._max_length)) for ids in self._encoder.encode(texts)
        ]


def chunks(ids: Sequence[int], length: int) -> Iterator[TokenRow]:
    """Parts of at most `length` tokens, each of which begins with the last token of the one before.

    All tokens but the first of each part are trained: n tokens give ⌈(n − 1) / (length − 1)⌉ parts.
    """
    for start in range(0, len(ids) - 1, length - 1):
        part = list(ids[start : start + length])
        yield TokenRow(part, [False] + [True] * (len(part) - 1))


def _encoded(batch: Numbered[str], encoder: TextRowEncoder, ledger: Ledger) -> SideRows:
    kept = SideRows(frozenset({encoder.end_id}))
    for (line, text), rows in zip(batch, encoder.rows([text for _, text in batch]), strict=True):
        content = text_hash(text)
        for row in rows:
            kept.add(row, row, (line, 1.0, content))
    ledger.rows += len(kept.rows)
    return kept
