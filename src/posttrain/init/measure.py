"""Measure a data file and this machine, for the numbers of a first config."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.base.text import first_line
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.data.bad_records import Refused
from posttrain.data.sources import Attempt, open_source
from posttrain.dpo.config.data import PairColumnsConfig, PairsDataset
from posttrain.dpo.preferences import Preference, open_preferences
from posttrain.errors import DataError
from posttrain.init.columns import Guess

if TYPE_CHECKING:
    from posttrain.init.golds import Gold

_SAMPLED = 2000
"""Rows that are tokenised; of more, a random sample."""
_MOST_BAD = 0.05
"""Share of unusable records up to which a config leaves them out; beyond it the data are wrong."""
_LONGEST = 2048
_ROUND_TO = 64
_FREE = 0.8
"""Share of the available memory that a suggestion may use."""


@dataclass(frozen=True)
class Measured:
    """What was found in the data.

    Attributes:
        rows: usable records.
        faults: one line for each record that is not usable.
        lengths: tokens of the sampled rows in ascending order; of the longer answer for pairs, of the prompt for grpo.
    """

    rows: int
    faults: Sequence[str]
    lengths: Sequence[int]

    def within(self, length: int) -> float:
        """The share of the sampled rows that have at most `length` tokens."""
        return sum(tokens <= length for tokens in self.lengths) / len(self.lengths)

    def percentile(self, percent: float) -> int:
        """The nearest-rank percentile of the lengths."""
        return self.lengths[max(0, math.ceil(len(self.lengths) * percent / 100) - 1)]


def measure(path: Path, guess: Guess, encoder: ConversationEncoder, gold: "Gold | None" = None) -> Measured:
    """Parse all records of a file, and tokenise up to 2,000 of them.

    Args:
        gold: how the gold answers are found; only for grpo.

    Raises:
        DataError: more than a few records are not usable, or none is.
    """
    rows, refused = 0, Refused(kept=None)
    chance, sample = random.Random(0), []
    for attempt in _attempts(path, guess, gold):
        try:
            record = attempt.parse()
        except DataError as error:
            refused.add(attempt.place, str(error))
            continue
        rows += 1
        if len(sample) < _SAMPLED:
            sample.append(record)
        elif (place := chance.randrange(rows)) < _SAMPLED:
            sample[place] = record
    if not rows or refused.count > _MOST_BAD * (rows + refused.count):
        raise refused.as_bad(str(path), rows) if refused.count else DataError(f"{path} holds no records")
    return Measured(rows, refused.shown, sorted(_lengths(sample, guess, encoder)))


def _attempts(path: Path, guess: Guess, gold: "Gold | None") -> Iterator[Attempt[Any]]:
    if gold is not None:
        from posttrain.init.golds import prompts  # needs the dataserver's packages

        return prompts(path, guess, gold)
    if guess.task == "dpo":
        pairs = PairsDataset(path=str(path), columns=PairColumnsConfig(**guess.read))
        return open_preferences(pairs).attempts()
    source = open_source(DatasetConfig(path=str(path), columns=ColumnsConfig(**guess.read)))
    return source.examples(require_answer=True).attempts()


def _lengths(sample: Sequence[Any], guess: Guess, encoder: ConversationEncoder) -> list[int]:
    if guess.task == "dpo":
        pairs: Sequence[Preference] = sample
        return [max(len(row.ids) for row in encoder.rows(pair.answers)) for pair in pairs]
    if guess.task == "grpo":
        return [len(ids) for ids in encoder.prompts(sample)]
    return [len(row.ids) for row in encoder.rows([conversation for conversation, _ in sample])]


def suggested_length(measured: Measured, positions: int | None, reserved: int = 0) -> int:
    """A length limit in tokens, in multiples of 64: of all rows, or of 95 % of them if the longest are very long.

    Args:
        positions: the model's context length, of which `reserved` tokens are for completions; None if it has no limit.
    """
    most = _LONGEST if positions is None else max(_ROUND_TO, min(_LONGEST, positions - reserved))
    whole = _rounded_up(measured.lengths[-1])
    return whole if whole <= most else max(_ROUND_TO, min(most, _rounded_up(measured.percentile(95))))


def _rounded_up(tokens: int) -> int:
    return _ROUND_TO * math.ceil(tokens / _ROUND_TO)


def suggested_micro_batch(
    model: ModelConfig, max_length: int, rows_per_step: int, sides: int, report: Callable[[str], None]
) -> int:
    """How many rows go through the model at once: 8 or fewer, as many as memory has room for.

    Args:
        sides: rows for each row of data: 2 for pairs.
    """
    sizes = [size for size in (8, 4, 2, 1) if rows_per_step % size == 0]
    try:
        needed = {size: _bytes(model, max_length, rows_per_step, size * sides) for size in sizes}
    except Exception as error:  # noqa: BLE001  # whatever a model's own code raises, there is a safe choice
        report(f"memory          not estimated: {first_line(error)}")
        return min(2, sizes[0])
    fits = [size for size in sizes if needed[size][0] <= _FREE * needed[size][1]]
    chosen = fits[0] if fits else 1
    need, free = needed[chosen]
    report(f"memory          {chosen} at once need at most {need / 2**30:.1f} of {free / 2**30:.1f} GiB")
    if not fits:
        report("                that may be too little: choose a smaller model, or shorter rows")
    return chosen


def _bytes(model: ModelConfig, max_length: int, rows_per_step: int, at_once: int) -> tuple[float, float]:
    """Bytes that training needs at most, and those that are available."""
    from posttrain.models.model_shape import TrainedModel
    from posttrain.train.cost.batches import Batch
    from posttrain.train.cost.estimate import Work, estimate

    config = _Sections(
        model, LoraConfig(), ChatConfig(), TrainingConfig(rows_per_step=rows_per_step, micro_batch_size=1)
    )
    longest = Batch(at_once, max_length, at_once * max_length)
    found = estimate(TrainedModel.of(config, 1), Work([[[longest]]], 1), timed=False)
    return found.bytes, found.available


@dataclass(frozen=True)
class _Sections:
    """What an estimate needs of a config."""

    model: ModelConfig
    lora: LoraConfig
    chat: ChatConfig
    training: TrainingConfig
