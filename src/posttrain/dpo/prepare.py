"""From a data set in the config to tokenised answers, with a ledger of what became of every record."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.base.cache import cache_dir
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.masks import TokenRow, trained_ends
from posttrain.data import tokenized
from posttrain.data.bad_records import bad_records_first
from posttrain.data.ledger import Ledger
from posttrain.data.preparation import batches, tokenizer_digest
from posttrain.data.splits import content_hash
from posttrain.data.token_arrays import TokenArrays
from posttrain.data.tokenized import TokenizedDataset, described_hash
from posttrain.dpo.config.data import AnyPreferences, OnUselessPair, TwoFilesDataset
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset
from posttrain.dpo.left_out import NOT_DRAWN, key_of, require_enough_kept
from posttrain.dpo.samples import taken
from posttrain.dpo.sources import Numbered, PreferenceSource, PreferenceStream, open_preferences
from posttrain.dpo.truncation import Fate, truncate_answers
from posttrain.errors import DataError

# Raise it when the same records come to be read in another way, so that what was kept is not read.
_READING = 2

Sides = tuple[TokenizedDataset, TokenizedDataset]
"""Chosen answers and rejected ones; row r of both belong together where the data are pairs."""


@dataclass(frozen=True)
class Policies:
    """What the config says about all data sets: how they are rendered, and what is left out of them."""

    chat: ChatConfig
    on_bad_record: OnBadRecord
    on_useless_pair: OnUselessPair
    seed: int
    """By which `n_samples` draws."""

    max_dropped_share: float = 1.0
    """How much of a data set may be left out before that is an error."""

    training_template: str | None = None
    """The tokenizer's own template with generation markers, where there is one."""


def prepare_preferences(
    name: str,
    config: AnyPreferences,
    policies: Policies,
    tokenizer: Any,
    report: Callable[[str], None] = lambda line: None,
) -> PreferenceDataset:
    """The rows of one data set, from the cache where the same inputs were prepared before.

    Raises:
        DataError: records are bad or useless and the policy is error, or more of them than may be are left out, or
            nothing can be learnt from the data.
    """
    source = open_preferences(config)
    digest = _content_digest(source.digest, config, policies.seed)
    folders = _folders(digest, policies, tokenizer)
    sides = _load(folders, name)
    if sides is None:
        report(f"tokenising {name} ({source.name})")
        _tokenise(source, config.n_samples, digest, policies, tokenizer, Ledger(name), folders)
        sides = _load(folders, name)
        assert sides is not None
    chosen, rejected = sides
    chosen.ledger.require_something_to_learn(policies.chat.min_end_tokens_kept)
    require_enough_kept(chosen.ledger, policies.max_dropped_share)
    if config.n_samples is not None and chosen.ledger.rows < config.n_samples:
        report(f"{key_of(name)}: n_samples is {config.n_samples:,}, and {chosen.ledger.rows:,} come out")
    sections = config.sources().values() if isinstance(config, TwoFilesDataset) else [config]
    if told := chosen.ledger.weights_told(section.columns.weight for section in sections):
        report(f"{key_of(name)}: {told}")
    if config.labelled:
        return LabelledDataset.from_sides(chosen, rejected, name, chosen.ledger, digest)
    return PairedDataset(name, chosen, rejected, chosen.ledger, digest)


def _content_digest(source: str, config: AnyPreferences, seed: int) -> str:
    """Hash of the source's content and of what is taken of it: with another one a run is not the same run.

    The policies are not in it: whatever they do, of records that are usable the same rows come out.
    """
    columns = {key: file.columns.model_dump() for key, file in config.sources().items()}
    return described_hash(
        {
            "source": source,
            "kind": config.type,
            "columns": columns if isinstance(config, TwoFilesDataset) else config.columns.model_dump(),
            # Without n_samples the rows are the same for all seeds.
            "drawn": [config.n_samples, seed] if config.n_samples is not None else None,
        }
    )


def _folders(digest: str, policies: Policies, tokenizer: Any) -> list[Path]:
    """Where each side is kept."""
    parts = {
        "preferences": digest,
        "reading": _READING,
        "chat": policies.chat.model_dump(exclude={"min_end_tokens_kept"}),
        "tokenizer": tokenizer_digest(tokenizer),
        "training_template": policies.training_template,
        "on_bad_record": policies.on_bad_record,
        "on_useless_pair": policies.on_useless_pair,
    }
    kept = cache_dir() / "tokenized"
    return [kept / tokenized.cache_key({**parts, "side": side}) for side in ("chosen", "rejected")]


def _load(folders: Sequence[Path], name: str) -> Sides | None:
    chosen, rejected = (tokenized.load(folder, name) for folder in folders)
    return None if chosen is None or rejected is None else (chosen, rejected)


def _tokenise(
    source: PreferenceSource,
    n_samples: int | None,
    digest: str,
    policies: Policies,
    tokenizer: Any,
    ledger: Ledger,
    folders: Sequence[Path],
) -> None:
    """Read the source to its end, and write the rows of each side to its folder as they come; all or nothing."""
    stream, records, not_drawn = taken(
        lambda: PreferenceStream(source, policies.on_bad_record, policies.on_useless_pair), n_samples, policies.seed
    )
    with ExitStack() as stack:
        writers = [stack.enter_context(tokenized.new_dataset(folder, ledger, digest)) for folder in folders]
        stack.enter_context(bad_records_first(records))
        encoder = conversation_encoder(policies.chat, tokenizer, policies.training_template)
        for batch in batches(records):
            for writer, side in zip(writers, _encoded(batch, policies, encoder, ledger), strict=True):
                writer.add(side)
        ledger.records, ledger.bad, ledger.faults = stream.read, stream.bad.count, stream.bad.shown
        for reason, count in stream.useless.items():
            ledger.dropped[reason] = ledger.dropped.get(reason, 0) + count
        if not_drawn:
            ledger.dropped[NOT_DRAWN] = not_drawn


def _encoded(
    batch: Sequence[Numbered], policies: Policies, encoder: ConversationEncoder, ledger: Ledger
) -> tuple[TokenArrays, TokenArrays]:
    """The rows of both sides that are kept, cut to their length, and counted in the ledger."""
    sides, kept, lost_ends = (_Side(), _Side()), 0, 0
    for (line, record), prompt, whole in _with_prompts(batch, encoder):
        try:
            rows, fate = _fitting(prompt, whole, policies)
        except DataError as error:
            raise DataError(f"{key_of(ledger.name)}: line {line}: {error}") from error
        if not rows:
            ledger.drop(fate)
            continue
        kept += 1
        ledger.cut_left += fate is Fate.CUT_LEFT
        ledger.cut_right += fate is Fate.CUT_RIGHT
        content = content_hash(record.prompt)
        there = [side for side, answer in zip(sides, (record.chosen, record.rejected), strict=True) if answer]
        for side, row, before in zip(there, rows, whole, strict=True):
            side.rows.append(row)
            side.records.append((line, record.weight, content))
            if row is not before:
                lost_ends += trained_ends(before, encoder.end_ids) - trained_ends(row, encoder.end_ids)
    chosen, rejected = (TokenArrays.from_rows(side.rows, side.records) for side in sides)
    for side in (chosen, rejected):
        ledger.count_tokens(side.lengths, side.trained_counts)
        ledger.count_weights(side.weights)
        ledger.count_ends(side.trained_of(encoder.end_ids), 0)
    ledger.count_ends(0, lost_ends)
    ledger.rows += kept  # what an optimizer step counts: pairs, or labelled answers
    return chosen, rejected


def _fitting(prompt: Sequence[int], whole: Sequence[TokenRow], policies: Policies) -> tuple[list[TokenRow], Fate]:
    """The rows of the answers to a prompt, cut to their length, or none.

    Raises:
        DataError: they do not fit, or do not begin with the prompt, or are the same where that is an error.
    """
    if any(row.ids[: len(prompt)] != prompt for row in whole):
        raise DataError(
            "the prompt is written otherwise once an answer follows it, as chat.reasoning_history: drop or a chat "
            "template may do; use keep, or template: chatml"
        )
    if len(whole) == 2 and whole[0].ids == whole[1].ids:
        if policies.on_useless_pair == "error":
            raise DataError(
                "both answers become the same tokens, so nothing can be learnt from them; leave such pairs out by "
                "on_useless_pair: drop"
            )
        return [], Fate.SAME
    return truncate_answers(len(prompt), whole, policies.chat.max_length, policies.chat.truncation)


def _with_prompts(
    batch: Sequence[Numbered], encoder: ConversationEncoder
) -> Iterator[tuple[Numbered, list[int], list[TokenRow]]]:
    """Each record with the tokens of its prompt, as the model would be given it, and the rows of its answers."""
    prompts = encoder.prompts([record.prompt for _, record in batch])
    rows = iter(encoder.rows([answer for _, record in batch for answer in record.answers]))
    for numbered, prompt in zip(batch, prompts, strict=True):
        yield numbered, prompt, list(islice(rows, len(numbered[1].answers)))


@dataclass
class _Side:
    """The rows of one side, and line, weight and content of each."""

    rows: list[TokenRow] = field(default_factory=list)
    records: list[tuple[int, float, int]] = field(default_factory=list)
