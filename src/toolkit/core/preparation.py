"""From a data set in the config to tokenised rows, with a ledger of what became of every record."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from toolkit.core import tokenized
from toolkit.core.cache import cache_dir
from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.data import DatasetConfig, OnBadRecord
from toolkit.core.conversation_encoder import ConversationEncoder, conversation_encoder
from toolkit.core.ledger import Ledger
from toolkit.core.masks import TokenRow
from toolkit.core.records import Record
from toolkit.core.sources import open_source
from toolkit.core.splits import content_hash
from toolkit.core.tokenized import TokenizedDataset
from toolkit.core.truncation import Outcome, truncate
from toolkit.errors import DataError

S = TypeVar("S")
P = TypeVar("P")

# How the ledger and errors call the rows of `validation.dataset`.
VALIDATION = "validation.dataset"

# Rows that are encoded by one call: enough to keep the tokenizer's threads busy.
_BATCH = 1024

_DROP_REASONS = {
    Outcome.DROPPED_TOO_LONG: "too long",
    Outcome.NOTHING_TRAINED: "nothing to train",
}


def prepare_dataset(
    name: str,
    config: DatasetConfig,
    chat: ChatConfig,
    tokenizer: Any,
    on_bad_record: OnBadRecord,
    report: Callable[[str], None] = lambda line: None,
) -> TokenizedDataset:
    """The rows of one data set, from the cache where the same inputs were prepared before.

    Raises:
        DataError: records are bad and `on_bad_record` is error, or nothing can be learnt from the data.
    """
    source = open_source(config)
    key = tokenized.cache_key(
        {
            "source": source.digest,
            "columns": config.columns.model_dump(),
            "chat": chat.model_dump(exclude={"min_end_tokens_kept"}),
            "tokenizer": tokenizer_digest(tokenizer),
            "on_bad_record": on_bad_record,
        }
    )
    folder = cache_dir() / "tokenized" / key
    dataset = tokenized.load(folder, name)
    if dataset is None:
        report(f"tokenising {name} ({config.path})")
        records = source.read(on_bad_record, require_answer=True)
        dataset = _tokenise(name, records.records, records.faults, source.digest, chat, tokenizer)
        tokenized.save(dataset, folder)
    dataset.ledger.require_something_to_learn(chat.min_end_tokens_kept)
    return dataset


def prepare_each(sources: Mapping[str, S], prepare: Callable[[str, S], P]) -> dict[str, P]:
    """Call `prepare(name, source)` for all data sets, and tell the faults of all of them at once, as one DataError."""
    prepared: dict[str, P] = {}
    faults: list[str] = []
    for name, source in sources.items():
        try:
            prepared[name] = prepare(name, source)
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))
    return prepared


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash of everything in a tokenizer that decides which ids come out and which of them end a turn."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # What the last call asked for; every call asks anew, so they decide nothing and would change the hash.
    del state["truncation"], state["padding"]
    special = tokenizer.special_tokens_map
    return tokenized.cache_key({"tokenizer": state, "special": special, "template": tokenizer.chat_template})


def _tokenise(
    name: str, records: Sequence[Record], faults: Sequence[str], digest: str, chat: ChatConfig, tokenizer: Any
) -> TokenizedDataset:
    encoder = conversation_encoder(chat, tokenizer)
    ledger = Ledger(name, records=len(records) + len(faults), bad=len(faults), faults=list(faults[:20]))
    kept: list[TokenRow] = []
    kept_records: list[Record] = []
    for record, row in _encoded(records, encoder):
        short = _truncated(record, row, chat, encoder, ledger)
        if short is not None:
            kept.append(short)
            kept_records.append(record)
    ledger.count(kept)
    described = [(record.line, record.weight, content_hash(record.conversation)) for record in kept_records]
    return tokenized.from_rows(name, kept, described, ledger, digest)


def _encoded(records: Sequence[Record], encoder: ConversationEncoder) -> Iterator[tuple[Record, TokenRow]]:
    remaining = iter(records)
    while batch := list(islice(remaining, _BATCH)):
        yield from zip(batch, encoder.rows([record.conversation for record in batch]), strict=True)


def _truncated(
    record: Record, row: TokenRow, chat: ChatConfig, encoder: ConversationEncoder, ledger: Ledger
) -> TokenRow | None:
    try:
        short, outcome = truncate(row, chat.max_length, chat.truncation)
    except DataError as error:
        raise DataError(f"datasets.{ledger.name}: line {record.line}: {error}") from error
    if short is not None and short.trained[0]:
        # Cut on the left, it starts within an answer, and nothing predicts the first token of a row.
        short = TokenRow(short.ids, [False, *short.trained[1:]])
        short, outcome = (short, outcome) if any(short.trained) else (None, Outcome.NOTHING_TRAINED)
    if short is None:
        ledger.drop(_DROP_REASONS[outcome])
        return None
    ledger.cut_left += outcome is Outcome.CUT_LEFT
    ledger.cut_right += outcome in (Outcome.CUT_RIGHT, Outcome.CUT_ANSWER)
    ledger.count_ends(row, short, encoder.end_ids)
    return short
