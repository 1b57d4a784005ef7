"""From a data set in the config to tokenised answers, with a ledger of what became of every record."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from toolkit.core import tokenized
from toolkit.core.cache import cache_dir
from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.data import OnBadRecord
from toolkit.core.conversation_encoder import ConversationEncoder, conversation_encoder
from toolkit.core.curriculum.permutation import permute, round_keys
from toolkit.core.ledger import Ledger
from toolkit.core.masks import TokenRow
from toolkit.core.preparation import tokenizer_digest
from toolkit.core.splits import content_hash
from toolkit.core.tokenized import TokenizedDataset
from toolkit.dpo.config.data import AnyPreferences, OnUselessPair, TwoFilesDataset
from toolkit.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset
from toolkit.dpo.preferences import Preference
from toolkit.dpo.sources import PreferenceRecords, open_preferences
from toolkit.dpo.truncation import Fate, truncate_answers
from toolkit.errors import DataError

# Records that are encoded by one call: enough to keep the tokenizer's threads busy.
_BATCH = 1024

Numbered = tuple[int, Preference]
"""A preference and its line."""

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


def prepare_preferences(
    name: str,
    config: AnyPreferences,
    policies: Policies,
    tokenizer: Any,
    report: Callable[[str], None] = lambda line: None,
) -> PreferenceDataset:
    """The rows of one data set, from the cache where the same inputs were prepared before.

    Raises:
        DataError: records are bad or useless and the policy is error, or nothing can be learnt from the data.
    """
    source = open_preferences(config)
    digest = _content_digest(source.digest, config, policies.seed)
    folders = _folders(digest, policies, tokenizer)
    sides = _load(folders, name)
    if sides is None:
        report(f"tokenising {name} ({source.name})")
        found = source.read(policies.on_bad_record, policies.on_useless_pair)
        ledger = Ledger(name, records=found.read, bad=len(found.faults), faults=found.faults[:20])
        ledger.dropped.update(found.useless)
        records = drawn(found, config.n_samples, policies.seed, ledger)
        sides = _tokenise(records, policies.chat, tokenizer, ledger, digest)
        for folder, dataset in zip(folders.values(), sides, strict=True):
            tokenized.save(dataset, folder)
    chosen, rejected = sides
    chosen.ledger.require_something_to_learn(policies.chat.min_end_tokens_kept)
    if config.labelled:
        return LabelledDataset.from_sides(chosen, rejected, name, chosen.ledger, digest)
    return PairedDataset(name, chosen, rejected, chosen.ledger, digest)


def drawn(found: PreferenceRecords, n_samples: int | None, seed: int, ledger: Ledger) -> list[Numbered]:
    """`n_samples` of the usable records, in the order of the data: the first ones of a permutation by the seed."""
    records, count = found.records, len(found.records)
    if n_samples is None or n_samples >= count:
        return records
    ledger.dropped["not drawn (n_samples)"] = count - n_samples
    keys = round_keys(seed, "n_samples", 0)
    return [records[row] for row in sorted(permute(position, count, keys) for position in range(n_samples))]


def _content_digest(source: str, config: AnyPreferences, seed: int) -> str:
    """Hash of the source's content and of what is taken of it: with another one a run is not the same run.

    The policies are not in it: whatever they do, of records that are usable the same rows come out.
    """
    columns = {key: file.columns.model_dump() for key, file in config.sources().items()}
    return tokenized.cache_key(
        {
            "source": source,
            "kind": config.type,
            "columns": columns if isinstance(config, TwoFilesDataset) else config.columns.model_dump(),
            # Without n_samples the rows are the same for all seeds.
            "drawn": [config.n_samples, seed] if config.n_samples is not None else None,
        }
    )


def _folders(digest: str, policies: Policies, tokenizer: Any) -> dict[str, Path]:
    """Where each side is kept."""
    parts = {
        "preferences": digest,
        "chat": policies.chat.model_dump(exclude={"min_end_tokens_kept"}),
        "tokenizer": tokenizer_digest(tokenizer),
        "on_bad_record": policies.on_bad_record,
        "on_useless_pair": policies.on_useless_pair,
    }
    kept = cache_dir() / "tokenized"
    return {side: kept / tokenized.cache_key({**parts, "side": side}) for side in ("chosen", "rejected")}


def _load(folders: Mapping[str, Path], name: str) -> Sides | None:
    chosen, rejected = (tokenized.load(folder, name) for folder in folders.values())
    return None if chosen is None or rejected is None else (chosen, rejected)


def _tokenise(records: Sequence[Numbered], chat: ChatConfig, tokenizer: Any, ledger: Ledger, digest: str) -> Sides:
    encoder = conversation_encoder(chat, tokenizer)
    sides, kept = (_Side(), _Side()), 0
    for (line, record), prompt_tokens, whole in _encoded(records, encoder):
        try:
            rows, fate = truncate_answers(prompt_tokens, whole, chat.max_length, chat.truncation)
        except DataError as error:
            raise DataError(f"datasets.{ledger.name}: line {line}: {error}") from error
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
            ledger.count_ends(before, row, encoder.end_ids)
    chosen, rejected = sides
    ledger.count([*chosen.rows, *rejected.rows])
    ledger.rows = kept  # what an optimizer step counts: pairs, or labelled answers
    one, other = (tokenized.from_rows(ledger.name, side.rows, side.records, ledger, digest) for side in sides)
    return one, other


def _encoded(
    records: Sequence[Numbered], encoder: ConversationEncoder
) -> Iterator[tuple[Numbered, int, list[TokenRow]]]:
    """Each record with the tokens of its prompt, counted, and the rows of its answers.

    Raises:
        DataError: an answer's row does not begin with what the model would be given to answer.
    """
    remaining = iter(records)
    while batch := list(islice(remaining, _BATCH)):
        prompts = encoder.prompts([record.prompt for _, record in batch])
        rows = iter(encoder.rows([answer for _, record in batch for answer in record.answers]))
        for numbered, prompt in zip(batch, prompts, strict=True):
            answers = list(islice(rows, len(numbered[1].answers)))
            if any(row.ids[: len(prompt)] != prompt for row in answers):
                raise DataError(
                    f"line {numbered[0]}: the prompt is written otherwise once an answer follows it, as "
                    "chat.reasoning_history: drop or a chat template may do; use keep, or template: chatml"
                )
            yield numbered, len(prompt), answers


@dataclass
class _Side:
    """The rows of one side, and line, weight and content of each."""

    rows: list[TokenRow] = field(default_factory=list)
    records: list[tuple[int, float, int]] = field(default_factory=list)
