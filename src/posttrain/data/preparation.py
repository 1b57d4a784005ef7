"""From a data set in the config to tokenised rows, with a ledger of what became of every record."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from posttrain.base.cache import cache_dir
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig, OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.masks import TokenRow, trained_ends
from posttrain.conversation.truncation import Outcome, truncate
from posttrain.data import tokenized
from posttrain.data.bad_records import bad_records_first
from posttrain.data.ledger import Ledger
from posttrain.data.records import Record
from posttrain.data.sources import RecordStream, Source, open_source
from posttrain.data.splits import content_hash
from posttrain.data.token_arrays import TokenArrays
from posttrain.data.tokenized import TokenizedDataset, described_hash
from posttrain.errors import DataError

T = TypeVar("T")
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
    training_template: str | None = None,
) -> TokenizedDataset:
    """The rows of one data set, from the cache where the same inputs were prepared before.

    Raises:
        DataError: records are bad and `on_bad_record` is error, or nothing can be learnt from the data.
    """
    source = open_source(config)
    folder = tokenized_folder(source, chat, tokenizer, on_bad_record, training_template)
    dataset = tokenized.load(folder, name)
    if dataset is None:
        report(f"tokenising {name} ({config.path})")
        encoder = partial(conversation_encoder, chat, tokenizer, training_template)
        _tokenise(Ledger(name), source, on_bad_record, folder, chat, encoder)
        dataset = tokenized.load(folder, name)
        assert dataset is not None
    dataset.ledger.require_something_to_learn(chat.min_end_tokens_kept)
    if told := dataset.ledger.weights_told([config.columns.weight]):
        report(f"{name}: {told}")
    return dataset


def tokenized_folder(
    source: Source, chat: ChatConfig, tokenizer: Any, on_bad_record: OnBadRecord, training_template: str | None
) -> Path:
    """Where the rows of a source are kept once they are tokenised in this way."""
    key = tokenized.cache_key(
        {
            "source": source.digest,
            "columns": asdict(source.columns),
            "chat": chat.model_dump(exclude={"min_end_tokens_kept"}),
            "tokenizer": tokenizer_digest(tokenizer),
            "training_template": training_template,
            "on_bad_record": on_bad_record,
        }
    )
    return cache_dir() / "tokenized" / key


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
    return described_hash({"tokenizer": state, "special": special, "template": tokenizer.chat_template})


def batches(records: Iterator[T]) -> Iterator[list[T]]:
    """As many records at once as keep the tokenizer's threads busy."""
    while batch := list(islice(records, _BATCH)):
        yield batch


def _tokenise(
    ledger: Ledger,
    source: Source,
    on_bad_record: OnBadRecord,
    folder: Path,
    chat: ChatConfig,
    new_encoder: Callable[[], ConversationEncoder],
) -> None:
    """Read the source to its end, and write its rows to `folder` as they come; all or nothing."""
    stream = RecordStream(source, on_bad_record, require_answer=True)
    records = iter(stream)
    with tokenized.new_dataset(folder, ledger, source.digest) as writer, bad_records_first(records):
        encoder = new_encoder()
        for batch in batches(records):
            writer.add(_encoded(batch, chat, encoder, ledger))
        ledger.records, ledger.bad, ledger.faults = stream.usable + stream.bad, stream.bad, stream.faults


def _encoded(batch: list[Record], chat: ChatConfig, encoder: ConversationEncoder, ledger: Ledger) -> TokenArrays:
    """The rows of a batch that are kept, cut to their length, and counted in the ledger."""
    rows: list[TokenRow] = []
    described: list[tuple[int, float, int]] = []
    lost_ends = 0
    for record, whole in zip(batch, encoder.rows([record.conversation for record in batch]), strict=True):
        row = _truncated(record, whole, chat, ledger)
        if row is None:
            continue
        if row is not whole:
            lost_ends += trained_ends(whole, encoder.end_ids) - trained_ends(row, encoder.end_ids)
        rows.append(row)
        described.append((record.line, record.weight, content_hash(record.conversation)))
    arrays = TokenArrays.from_rows(rows, described)
    ledger.rows += len(arrays)
    ledger.count_tokens(arrays.lengths, arrays.trained_counts)
    ledger.count_weights(arrays.weights)
    ledger.count_ends(arrays.trained_of(encoder.end_ids), lost_ends)
    return arrays


def _truncated(record: Record, row: TokenRow, chat: ChatConfig, ledger: Ledger) -> TokenRow | None:
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
    return short
