"""Data of a preference run: prepared data sets, validation split, and curriculum."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.base.cache import cache_dir
from posttrain.base.files import described_hash
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.masks import TokenRow
from posttrain.data import tokenized
from posttrain.data.bad_records import bad_records_first
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.data.ledger import Ledger
from posttrain.data.preparation import (
    VALIDATION,
    Numbered,
    SideRows,
    prepare_each,
    rows_of,
    tokenizer_digest,
    write_rows,
)
from posttrain.data.records import USELESS
from posttrain.data.sources import ExampleStream
from posttrain.data.splits import content_hash, split_each
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.data import AnyPreferences, OnUselessPair, TwoFilesDataset
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset, concatenate
from posttrain.dpo.preferences import Preference, open_preferences
from posttrain.dpo.truncation import Fate, truncate_answers
from posttrain.errors import DataError
from posttrain.models.tokens import training_template

T = TypeVar("T")

# Increment when the same records are parsed differently, so that older caches are not read.
_READING = 2

_NOT_DRAWN = "not drawn (n_samples)"
"""The ledger's name for records that `n_samples` left out."""

Sides = tuple[TokenizedDataset, TokenizedDataset]
"""Chosen and rejected answers; if the data are pairs, row r of one belongs to row r of the other."""


@dataclass(frozen=True)
class Policies:
    """The config's settings for all data sets: how they are rendered, and what is left out."""

    chat: ChatConfig
    on_bad_record: OnBadRecord
    on_useless_pair: OnUselessPair
    seed: int
    """The seed with which `n_samples` draws."""

    max_dropped_share: float = 1.0
    """The share of a data set that may be left out before it is an error."""

    training_template: str | None = None
    """The tokenizer's own template with generation markers, if there is one."""


def prepare_preferences(
    name: str,
    config: AnyPreferences,
    policies: Policies,
    tokenizer: Any,
    report: Callable[[str], None] = lambda line: None,
) -> PreferenceDataset:
    """The rows of one data set, from the cache if the same inputs were prepared before.

    Raises:
        DataError: records are bad or useless and the policy is error, too many of them are left out, or nothing can be
            learnt from the data.
    """
    source = open_preferences(config)
    if source.note is not None:
        report(source.note)
    digest = _content_digest(source.digest, config, policies.seed)
    folders = _folders(digest, policies, tokenizer)

    def make() -> None:
        report(f"tokenising {name} ({source.name})")
        ledger = Ledger(name)
        stream, examples, not_drawn = _taken(
            lambda: ExampleStream(source, policies.on_bad_record, policies.on_useless_pair),
            config.n_samples,
            policies.seed,
        )
        if not_drawn:
            ledger.dropped[_NOT_DRAWN] = not_drawn
        with bad_records_first(examples):
            encoder = conversation_encoder(policies.chat, tokenizer, policies.training_template)

            def encode(batch: Numbered[Preference]) -> tuple[SideRows, SideRows]:
                return _encoded(batch, policies, encoder, ledger)

            write_rows(stream, examples, encode, ledger, digest, folders)

    chosen, rejected = tokenized.made_once(folders, name, lambda: _load(folders, name), make)
    chosen.ledger.require_something_to_learn(policies.chat.min_end_tokens_kept)
    _require_enough_kept(chosen.ledger, policies.max_dropped_share)
    if config.n_samples is not None and chosen.ledger.rows < config.n_samples:
        report(f"{_key_of(name)}: n_samples is {config.n_samples:,}, but only {chosen.ledger.rows:,} rows are left")
    sections = config.sources().values() if isinstance(config, TwoFilesDataset) else [config]
    if told := chosen.ledger.weights_summary(section.columns.weight for section in sections):
        report(f"{_key_of(name)}: {told}")
    if config.labelled:
        return LabelledDataset.from_sides(chosen, rejected, name, chosen.ledger, digest)
    return PairedDataset(name, chosen, rejected, chosen.ledger, digest)


def _content_digest(source: str, config: AnyPreferences, seed: int) -> str:
    """Hash of the source's content and of what is taken from it, as part of a run's identity.

    `on_bad_record` and `on_useless_pair` are not part of it: under any policy, usable records give the same rows.
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
    """The cache folder of each side."""
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


def _encoded(
    batch: Numbered[Preference], policies: Policies, encoder: ConversationEncoder, ledger: Ledger
) -> tuple[SideRows, SideRows]:
    """The kept rows of both sides, truncated and counted in the ledger."""
    sides = SideRows(encoder.end_ids), SideRows(encoder.end_ids)
    for (line, record), prompt, whole in _with_prompts(batch, encoder, _key_of(ledger.name)):
        try:
            rows, fate = _fitting(prompt, whole, policies)
        except DataError as error:
            raise DataError(f"{_key_of(ledger.name)}: line {line}: {error}") from error
        if not rows:
            ledger.drop(fate)
            continue
        ledger.rows += 1  # what an optimizer step counts: a pair, or a labelled answer
        ledger.cut_left += fate is Fate.CUT_LEFT
        ledger.cut_right += fate is Fate.CUT_RIGHT
        described = line, record.weight, content_hash(record.prompt)
        there = [side for side, answer in zip(sides, (record.chosen, record.rejected), strict=True) if answer]
        for side, row, before in zip(there, rows, whole, strict=True):
            side.add(row, before, described)
    return sides


def _fitting(prompt: Sequence[int], whole: Sequence[TokenRow], policies: Policies) -> tuple[list[TokenRow], Fate]:
    """The truncated rows of the answers to a prompt, or none if they are dropped.

    Raises:
        DataError: a row does not begin with the prompt; or rows are too long or the same, and the policy is error.
    """
    if any(row.ids[: len(prompt)] != prompt for row in whole):
        raise DataError(
            "the prompt is rendered differently once an answer follows it; chat.reasoning_history: drop or a chat "
            "template can cause this; use keep, or template: chatml"
        )
    if len(whole) == 2 and whole[0].ids == whole[1].ids:
        if policies.on_useless_pair == "error":
            raise DataError(
                "both answers have the same tokens, so nothing can be learnt from them; drop such pairs with "
                "on_useless_pair: drop"
            )
        return [], Fate.SAME
    return truncate_answers(len(prompt), whole, policies.chat.max_length, policies.chat.truncation)


def _with_prompts(
    batch: Numbered[Preference], encoder: ConversationEncoder, key: str
) -> Iterator[tuple[tuple[int, Preference], list[int], list[TokenRow]]]:
    """Each record with its prompt's tokens, as the model would be given them, and the rows of its answers."""
    answers = [(line, answer) for line, record in batch for answer in record.answers]
    rows = iter(rows_of(answers, encoder, key))
    prompts = encoder.prompts([record.prompt for _, record in batch])
    for numbered, prompt in zip(batch, prompts, strict=True):
        yield numbered, prompt, list(islice(rows, len(numbered[1].answers)))


def _taken(
    stream: Callable[[], ExampleStream[Preference]], n_samples: int | None, seed: int
) -> tuple[ExampleStream[Preference], Iterator[tuple[int, Preference]], int]:
    """A stream that counts every record, the records taken in the order of the data, and how many are not taken.

    Which records are drawn depends on how many are usable, so `n_samples` reads the source twice. The counts are then
    complete after the first pass; without `n_samples` they grow as the records are read.

    Raises:
        DataError: as the stream, if it has to be read first.
    """
    counted = stream()
    if n_samples is None:
        return counted, iter(counted), 0
    usable = sum(1 for _ in counted)
    if n_samples >= usable:
        return counted, iter(stream()), 0
    return counted, _at(iter(stream()), _drawn(usable, n_samples, seed)), usable - n_samples


def _drawn(count: int, n_samples: int, seed: int) -> npt.NDArray[np.int64]:
    """The indices of `n_samples` of `count` records, in ascending order: the first ones of a seeded permutation."""
    keys = round_keys(seed, "n_samples", 0)
    places = (permute(position, count, keys) for position in range(n_samples))
    return np.sort(np.fromiter(places, dtype=np.int64, count=n_samples))


def _at(records: Iterator[T], places: npt.NDArray[np.int64]) -> Iterator[T]:
    """The records at ascending indices; records after the last of them are not read."""
    numbered = enumerate(records)
    for place in places:
        yield next(record for number, record in numbered if number == place)


def _key_of(name: str) -> str:
    """The config key of the data set of this name."""
    return name if name == VALIDATION else f"datasets.{name}"


def _require_enough_kept(ledger: Ledger, max_dropped_share: float) -> None:
    """Raise DataError if more than this share of the records is bad, useless or too long.

    How many of the records that `n_samples` did not draw would have been too long is unknown; they are assumed to have
    the same share as the drawn ones.
    """
    teaches = ledger.records - ledger.bad - sum(ledger.dropped.get(reason, 0) for reason in USELESS)
    drawn = teaches - ledger.dropped.get(_NOT_DRAWN, 0)
    # Rounded, so that a share equal to the limit does not come out slightly above it.
    share = round(1 - teaches * ledger.rows / (ledger.records * drawn), 9)
    if share <= max_dropped_share:
        return
    counts = {"bad": ledger.bad, **{reason: n for reason, n in ledger.dropped.items() if reason != _NOT_DRAWN}}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    raise DataError(
        f"{_key_of(ledger.name)}: {share:.0%} of {ledger.records:,} records are left out ({reasons}), more than "
        f"max_dropped_share: {max_dropped_share:g} allows; check the data and its columns, raise chat.max_length "
        "if records are too long, or raise max_dropped_share"
    )


@dataclass(frozen=True)
class PreferenceData:
    """Training data, held-out data, curriculum and number of steps, with the ledgers of all data sets.

    All data sets are of one kind: pairs, or for kto labelled answers. `max_steps` is the optimizer step at which
    training ends; with `epochs` it is known only once the data are counted.
    """

    datasets: dict[str, PreferenceDataset]
    validation: PreferenceDataset | None
    curriculum: Curriculum
    max_steps: int
    ledgers: list[Ledger]


def prepare_data(config: DPOConfig, tokenizer: Any, report: Callable[[str], None]) -> PreferenceData:
    """Read, tokenise and split everything that the config names.

    Raises:
        DataError: a file or record is bad, too little is left of a data set, or kto's answers all have the same label.
        ConfigError: the stages or the schedule do not fit the data.
    """
    sources = dict(config.datasets)
    if config.validation is not None and config.validation.dataset is not None:
        sources[VALIDATION] = config.validation.dataset
    policies = Policies(
        config.chat,
        config.on_bad_record,
        config.on_useless_pair,
        config.training.seed,
        config.max_dropped_share,
        training_template(config.chat, tokenizer),
    )

    def prepare(name: str, source: AnyPreferences) -> PreferenceDataset:
        return prepare_preferences(name, source, policies, tokenizer, report)

    prepared = prepare_each(sources, prepare)
    ledgers = [dataset.ledger for dataset in prepared.values()]
    if config.method.unpaired:
        labelled = {name: _as_labelled(dataset) for name, dataset in prepared.items()}
        _require_both_labels([labelled[name] for name in config.datasets])
        prepared = dict[str, PreferenceDataset](labelled)
    datasets = {name: prepared[name] for name in config.datasets}
    validation = prepared.get(VALIDATION)
    if config.validation is not None and config.validation.fraction is not None:
        datasets, held_out = split_each(datasets, config.validation.fraction, config.training.seed)
        validation = concatenate(held_out, "validation")
    sizes = {name: len(dataset) for name, dataset in datasets.items()}
    training = config.training
    curriculum = Curriculum(config.curriculum_stages(sizes), sizes, training.rows_per_step, training.seed)
    return PreferenceData(datasets, validation, curriculum, config.steps_of(curriculum), ledgers)


def _as_labelled(dataset: PreferenceDataset) -> LabelledDataset:
    return dataset if isinstance(dataset, LabelledDataset) else LabelledDataset.from_pairs(dataset)


def _require_both_labels(datasets: list[LabelledDataset]) -> None:
    """Refuse data whose answers are all good or all bad: the label column is misread, or one side is missing."""
    labels = {bool(label) for dataset in datasets for label in np.unique(dataset.desirable)}
    if len(labels) == 1:
        raise DataError(
            f"every answer in datasets is labelled {str(labels.pop()).lower()}; kto needs both good and bad "
            "answers: check columns.label, or add the other kind"
        )
