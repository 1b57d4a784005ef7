"""Task `loss`: cross-entropy of given answers per trained token, as the validation loss of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from posttrain.base.console import console
from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig, RowFormatConfig
from posttrain.config.values import LocalOrNamed
from posttrain.conversation.masks import TokenRow
from posttrain.data.readers.open import LineSource, open_lines
from posttrain.data.sources import values
from posttrain.dataserver.graders.text.completions import column_value
from posttrain.errors import ConfigError
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.tasks.base import LoadedTask, Measured, Setting, TaskConfig

if TYPE_CHECKING:
    from posttrain.data.tokenized import TokenizedDataset
    from posttrain.evaluate.logprobs import Scoring
    from posttrain.evaluate.models import Model


class LossTaskConfig(RowFormatConfig, TaskConfig):
    """How likely a model finds given answers; models are compared only if they have the same tokens."""

    type: Literal["loss"]
    """The loss per trained token of conversations, in nats; less is better."""

    path: LocalOrNamed
    """A file or Hugging Face data set of conversations, as in a training config."""

    split: str = "train"
    """Split of a Hugging Face data set."""

    columns: ColumnsConfig = ColumnsConfig()
    """Names of the columns."""

    @property
    def measures(self) -> Sequence[str]:
        """The loss."""
        return ("loss",)

    def load(self, name: str, setting: Setting) -> LoadedTask:
        """Find the data; DataError if there are none."""
        dataset = DatasetConfig(path=self.path, split=self.split, format=self.format, columns=self.columns)
        return LossTask(name, self, setting, dataset, open_lines(self.path, None, self.split))


@dataclass(frozen=True)
class LossTask:
    """Conversations that have been found."""

    name: str
    config: LossTaskConfig
    setting: Setting
    dataset: DatasetConfig
    lines: LineSource

    @property
    def size(self) -> int | None:
        """Number of conversations, if it is known before they are tokenised."""
        return self.config.prompts

    def job(self, model: "Model") -> "LossJob":
        """The conversations as tokens of `model`.

        Raises:
            ConfigError: the model is behind a server, or a conversation has no cluster.
            DataError: a conversation is wrong.
        """
        from posttrain.data.preparation import prepare_dataset
        from posttrain.data.splits import by_rank
        from posttrain.evaluate.logprobs import Scoring, require_local
        from posttrain.models.tokens import training_template

        local = require_local(model, self.name)
        chat, tokenizer = local.weights.chat, local.text.tokenizer
        on_bad_record = "skip" if self.setting.skip_unusable else "error"
        template = training_template(chat, tokenizer)
        tokens = prepare_dataset(self.name, self.dataset, chat, tokenizer, on_bad_record, console.print, template)
        chosen = by_rank(tokens.contents, 0)[: self.config.prompts]
        rows = [TokenRow(*(part.tolist() for part in tokens.row(number))) for number in chosen.tolist()]
        scoring = Scoring.of(local, self.name, rows, self.setting.folder / "logprobs")
        subset = tokens.subset(chosen, self.name)
        return LossJob(subset, scoring, self.clusters(subset.lines.tolist()))

    def clusters(self, lines: Sequence[int]) -> dict[str, str] | None:
        """The cluster of each conversation, by its line; None if they are not grouped."""
        column = self.config.cluster
        if column is None:
            return None
        found = {line.number: column_value(values(line), column) for line in self.lines.lines() if line.value}
        if missing := [line for line in lines if found.get(line) is None]:
            raise ConfigError(f"tasks.{self.name}.cluster: {self.lines.place(missing[0])} has no column {column!r}")
        return {str(line): str(found[line]) for line in lines}


@dataclass(frozen=True)
class LossJob:
    """Conversations to be scored by one model."""

    rows: "TokenizedDataset"
    scoring: "Scoring"
    clusters: Mapping[str, str] | None

    @property
    def is_done(self) -> bool:
        """Whether everything is scored."""
        return self.scoring.is_done

    @property
    def longest(self) -> int:
        """The largest number of tokens that are scored together."""
        return self.scoring.longest

    def run(self) -> Measured:
        """Score the conversations."""
        lines = self.rows.lines.tolist()
        weights = [float(weight) for weight in self.rows.weights]
        tokens = [weight * count for weight, count in zip(weights, self.rows.trained_counts().tolist(), strict=True)]
        losses = [-weight * logprob for weight, logprob in zip(weights, self.scoring.run(), strict=True)]
        by_line = dict(zip(map(str, lines), shares_of_loss(losses, tokens), strict=True))
        facts = {"tokens": fmean(self.rows.lengths().tolist())}
        same = self.rows.token_digest().hex()
        scores = {"loss": Scores(by_line, 0, "loss")}
        return Measured(scores, len(lines), self.clusters, facts, comparable=same)


def shares_of_loss(losses: Sequence[float], tokens: Sequence[float]) -> list[float]:
    """Each row's value, so that their mean is L = Σ loss / Σ tokens, and their spread is that of this ratio.

    The mean length is as uncertain as the mean loss; to first order, L varies as the mean of (lossᵣ − L·tokensᵣ) / t,
    with t the mean of the tokens (Cochran, Sampling Techniques, 1977, section 6.3).

    Args:
        losses: weighted sum of −log p of each row, in nats.
        tokens: weighted number of its trained tokens.
    """
    mean = fmean(tokens)
    ratio = fmean(losses) / mean
    return [ratio + (loss - ratio * count) / mean for loss, count in zip(losses, tokens, strict=True)]
