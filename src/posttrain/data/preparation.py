"""Tokenise a data set of the config and count what became of every record."""

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from posttrain.base.cache import cache_dir
from posttrain.base.files import described_hash
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig, OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.masks import TokenRow, trained_ends
from posttrain.conversation.messages import Conversation
from posttrain.conversation.truncation import Outcome, truncate
from posttrain.data import tokenized
from posttrain.data.bad_records import bad_records_first
from posttrain.data.ledger import Ledger
from posttrain.data.sources import Examples, ExampleStream, Parsed, Source, open_source
from posttrain.data.splits import content_hash
from posttrain.data.token_arrays import TokenArrays
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import DataError

T = TypeVar("T")
S = TypeVar("S")
P = TypeVar("P")

Numbered = list[tuple[int, T]]
"""Examples, each with its line number."""

# Name of the rows of `validation.dataset` in the ledger and in errors.
VALIDATION = "validation.dataset"

# Rows encoded per call: enough to keep the tokenizer's threads busy.
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
    """The rows of one data set, from the cache if the same inputs were prepared before.

    Raises:
        DataError: there are bad records and `on_bad_record` is error, or nothing can be learnt from the data.
    """
    source = open_source(config)
    examples = source.examples(require_answer=True)
    folder = tokenized_folder(source, chat, tokenizer, on_bad_record, training_template)

    def encoding(ledger: Ledger) -> Callable[[Numbered[Parsed]], SideRows]:
        encoder = conversation_encoder(chat, tokenizer, training_template)
        return lambda batch: _encoded(batch, chat, encoder, ledger)

    dataset = prepare_rows(name, config.path, examples, folder, encoding, on_bad_record, report)
    dataset.ledger.require_something_to_learn(chat.min_end_tokens_kept)
    if told := dataset.ledger.weights_summary([config.columns.weight]):
        report(f"{name}: {told}")
    return dataset


def prepare_rows(  # what is read, where it is kept, and how
    name: str,
    path: str,
    examples: Examples[T],
    folder: Path,
    encoding: "Callable[[Ledger], Callable[[Numbered[T]], SideRows]]",
    on_bad_record: OnBadRecord,
    report: Callable[[str], None],
) -> TokenizedDataset:
    """The rows of one data set from its cache folder, or tokenised and written there.

    Args:
        encoding: makes the function that turns a batch into the rows to keep, and counts them in the ledger.

    Raises:
        DataError: there are bad records and `on_bad_record` is error, or none is usable.
    """
    if examples.note is not None:
        report(examples.note)

    def make() -> None:
        report(f"tokenising {name} ({path})")
        ledger, stream = Ledger(name), ExampleStream(examples, on_bad_record)
        records = iter(stream)
        with bad_records_first(records):
            encode = encoding(ledger)
            write_rows(stream, records, lambda batch: [encode(batch)], ledger, examples.digest, [folder])

    return tokenized.made_once([folder], name, lambda: tokenized.load(folder, name), make)


def tokenized_folder(
    source: Source, chat: ChatConfig, tokenizer: Any, on_bad_record: OnBadRecord, training_template: str | None
) -> Path:
    """Cache folder for the rows of a source, tokenised with these settings."""
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
    """Call `prepare(name, source)` for every data set, and raise the faults of all of them as one DataError."""
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
    """Hash of everything in a tokenizer that decides which ids it produces and which of them end a turn."""
    state = tokenizer.backend_tokenizer.to_str()
    return _state_digest(state, json.dumps(tokenizer.special_tokens_map), json.dumps(tokenizer.chat_template))


@lru_cache(maxsize=4)  # it takes a quarter of a second, and every data set asks for it
def _state_digest(state: str, special: str, template: str) -> str:
    described = json.loads(state)
    # Left over from the last call: every call sets them again, so they decide nothing but would change the hash.
    del described["truncation"], described["padding"]
    parts = {"tokenizer": described, "special": json.loads(special), "template": json.loads(template)}
    return described_hash(parts)


@dataclass
class SideRows:
    """Encoded rows of one side of a data set: its only side, or the chosen or rejected answers.

    Attributes:
        end_ids: tokens that end an answer.
        records: line, weight and content hash of each row.
        lost_ends: number of trained end tokens that were cut off.
    """

    end_ids: frozenset[int]
    rows: list[TokenRow] = field(default_factory=list)
    records: list[tuple[int, float, int]] = field(default_factory=list)
    lost_ends: int = 0

    def add(self, row: TokenRow, whole: TokenRow, record: tuple[int, float, int]) -> None:
        """Add a row; `whole` is the row before truncation."""
        self.rows.append(row)
        self.records.append(record)
        if row is not whole:
            self.lost_ends += trained_ends(whole, self.end_ids) - trained_ends(row, self.end_ids)


def write_rows(
    stream: ExampleStream[T],
    examples: Iterator[tuple[int, T]],
    encode: Callable[[Numbered[T]], Sequence[SideRows]],
    ledger: Ledger,
    digest: str,
    folders: Sequence[Path],
) -> None:
    """Tokenise all examples in batches and write the rows of each side to its folder; all or nothing.

    Args:
        stream: counts the records that `examples` reads.
        encode: turns a batch into the rows to keep, for each folder.
        ledger: gets the counts of rows and records.
    """
    with ExitStack() as stack:
        stack.enter_context(_no_collections())
        writers = [stack.enter_context(tokenized.new_dataset(folder, ledger, digest)) for folder in folders]
        while batch := list(islice(examples, _BATCH)):
            for writer, side in zip(writers, encode(batch), strict=True):
                arrays = TokenArrays.from_rows(side.rows, side.records)
                ledger.count_tokens(arrays.lengths, arrays.trained_counts)
                ledger.count_weights(arrays.weights)
                ledger.count_ends(arrays.trained_of(side.end_ids), side.lost_ends)
                writer.add(arrays)
        ledger.records, ledger.bad, ledger.faults = stream.read, stream.bad.count, stream.bad.shown
        for reason, count in stream.useless.items():
            ledger.dropped[reason] = ledger.dropped.get(reason, 0) + count


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collections: rows have no cycles, and looking through their ids takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _encoded(batch: Numbered[Parsed], chat: ChatConfig, encoder: ConversationEncoder, ledger: Ledger) -> SideRows:
    """The kept rows of a batch, truncated and counted in the ledger."""
    kept = SideRows(encoder.end_ids)
    conversations = [(line, conversation) for line, (conversation, _) in batch]
    wholes = rows_of(conversations, encoder, f"datasets.{ledger.name}")
    for (line, (conversation, weight)), whole in zip(batch, wholes, strict=True):
        row = _truncated(line, whole, chat, ledger)
        if row is not None:
            kept.add(row, whole, (line, weight, content_hash(conversation)))
    ledger.rows += len(kept.rows)
    return kept


def rows_of(batch: Numbered[Conversation], encoder: ConversationEncoder, key: str) -> list[TokenRow]:
    """The rows of conversations; DataError names the data set by its key and the line of the first that is refused."""
    try:
        return encoder.rows([conversation for _, conversation in batch])
    except DataError:
        for line, conversation in batch:
            try:
                encoder.rows([conversation])
            except DataError as error:
                raise DataError(f"{key}: line {line}: {error}") from error
        raise


def _truncated(line: int, row: TokenRow, chat: ChatConfig, ledger: Ledger) -> TokenRow | None:
    try:
        short, outcome = truncate(row, chat.max_length, chat.truncation)
    except DataError as error:
        raise DataError(f"datasets.{ledger.name}: line {line}: {error}") from error
    if short is not None and short.trained[0]:
        # Cut on the left, the row starts inside an answer, but nothing predicts the first token of a row.
        short = TokenRow(short.ids, [False, *short.trained[1:]])
        short, outcome = (short, outcome) if any(short.trained) else (None, Outcome.NOTHING_TRAINED)
    if short is None:
        ledger.drop(_DROP_REASONS[outcome])
        return None
    ledger.cut_left += outcome is Outcome.CUT_LEFT
    ledger.cut_right += outcome in (Outcome.CUT_RIGHT, Outcome.CUT_ANSWER)
    return short
