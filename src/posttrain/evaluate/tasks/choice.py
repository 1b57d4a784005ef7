"""Task `choice`: of several given answers, the one that a model finds most likely should be the right one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from posttrain.config.sections.datasets import ColumnName, DistinctColumns
from posttrain.config.values import LocalOrNamed
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.masks import TokenRow
from posttrain.conversation.messages import Conversation, Message
from posttrain.data.readers.open import LineSource, open_lines
from posttrain.data.records import Columns
from posttrain.dataserver.graders.text.completions import column_value
from posttrain.errors import DataError
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.tasks.base import LoadedTask, Measured, Setting, TaskConfig

if TYPE_CHECKING:
    from posttrain.evaluate.logprobs import Scoring
    from posttrain.evaluate.models import Model

Score = Literal["acc", "acc_norm"]
_SAMPLES = 10


class ChoiceColumnsConfig(DistinctColumns):
    """Names of the columns."""

    prompt: ColumnName = "prompt"
    """The user's text, or a list of messages."""

    choices: ColumnName = "choices"
    """The list of answers to choose from."""

    gold: ColumnName = "gold"
    """The right answer: its place in the list, counted from 0, or its text."""

    system: ColumnName | None = None
    """System message of each row."""


class ChoiceTaskConfig(TaskConfig):
    """Multiple choice by log-likelihood; nothing is generated."""

    type: Literal["choice"]
    """The share of questions whose right answer is the most likely one, as the assistant's turn."""

    path: LocalOrNamed
    """A file or Hugging Face data set of questions."""

    split: str = "train"
    """Split of a Hugging Face data set."""

    columns: ChoiceColumnsConfig = ChoiceColumnsConfig()
    """Names of the columns."""

    score: tuple[Score, ...] = Field(default=("acc", "acc_norm"), min_length=1)
    """`acc` compares the answers' log-probabilities, `acc_norm` those per byte of the answer, so that long answers are
    not at a disadvantage."""

    @property
    def measures(self) -> Sequence[str]:
        """The scores that are wanted."""
        return self.score

    def load(self, name: str, setting: Setting) -> LoadedTask:
        """Read and check the questions; DataError if some are wrong."""
        source = open_lines(self.path, None, self.split)
        questions = _read(source, self, skip=setting.skip_unusable)
        return ChoiceTask(name, self, setting, _chosen(questions, self.prompts))


@dataclass(frozen=True)
class Question:
    """A prompt, the answers to choose from, and the place of the right one."""

    line: int
    prompt: Conversation
    choices: tuple[str, ...]
    gold: int
    cluster: str | None


def _read(source: LineSource, config: ChoiceTaskConfig, *, skip: bool) -> list[Question]:
    questions, faults = [], []
    for line in source.lines():
        try:
            if line.value is None:
                raise DataError(line.fault)
            questions.append(_question(line.number, line.value, config))
        except DataError as error:
            faults.append((line.number, str(error)))
    if faults and not (skip and questions):
        raise source.refusal(faults, len(questions))
    if not questions:
        raise DataError(f"{source.name} holds no questions")
    return questions


def _chosen(questions: Sequence[Question], count: int | None) -> list[Question]:
    """The first `count` in an order that depends on their content, so that they are a fair sample; None takes all."""
    import numpy as np

    from posttrain.data.splits import by_rank, content_hash

    contents = np.array([content_hash(question.prompt) for question in questions], dtype=np.uint64)
    return [questions[place] for place in by_rank(contents, 0)[:count]]


def _question(number: int, record: Mapping[str, Any], config: ChoiceTaskConfig) -> Question:
    from posttrain.dataserver.data.samples import parse_prompt

    names = config.columns
    columns = Columns(messages=None, prompt=names.prompt, completion=None, system=names.system, tools=None, weight=None)
    choices, gold = record.get(names.choices), record.get(names.gold)
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(each, str) and each for each in choices):
        raise DataError(f"{names.choices!r} must be a list of two or more texts")
    if len(set(choices)) < len(choices):
        raise DataError(f"{names.choices!r} holds the same answer twice")
    if isinstance(gold, str) and gold in choices:
        gold = choices.index(gold)
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < len(choices):
        raise DataError(f"{names.gold!r} must be one of the answers, or its place from 0 to {len(choices) - 1}")
    cluster = None
    if config.cluster is not None and (cluster := column_value(record, config.cluster)) is None:
        raise DataError(f"there is no column {config.cluster!r}, which `cluster` names")
    prompt = parse_prompt(record, columns, None)
    return Question(number, prompt, tuple(choices), gold, None if cluster is None else str(cluster))


@dataclass(frozen=True)
class ChoiceTask:
    """Questions that have been read."""

    name: str
    config: ChoiceTaskConfig
    setting: Setting
    questions: Sequence[Question]

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def job(self, model: "Model") -> "ChoiceJob":
        """The answers as tokens of `model`.

        Raises:
            ConfigError: the model is behind a server.
            DataError: a question with an answer is longer than the model's context.
        """
        from posttrain.evaluate.logprobs import Scoring, require_local

        local = require_local(model, self.name)
        chat = local.weights.chat.model_copy(update={"train_on": "last"})
        encoder = conversation_encoder(chat, local.text.tokenizer)
        rows = [row for question in self.questions for row in answer_rows(question, encoder)]
        lines = [question.line for question in self.questions for _ in question.choices]
        positions = local.text.positions
        for line, row in zip(lines, rows, strict=True):
            if positions is not None and len(row.ids) > positions:
                told = f"tasks.{self.name}: line {line} of {self.config.path} has {len(row.ids)} tokens with an answer"
                raise DataError(f"{told}, more than the {positions} positions of {local.name}")
        return ChoiceJob(self, Scoring.of(local, self.name, rows, self.setting.folder / "logprobs"))


def answer_rows(question: Question, encoder: ConversationEncoder) -> list[TokenRow]:
    """Each answer as the assistant's turn after the prompt; its tokens are labelled, but not the one that ends it."""
    return answer_tokens([answered(question.prompt, choice) for choice in question.choices], encoder)


def answered(prompt: Conversation, text: str) -> Conversation:
    """The prompt with the text as the assistant's turn."""
    return replace(prompt, messages=(*prompt.messages, Message("assistant", text)))


def answer_tokens(conversations: Sequence[Conversation], encoder: ConversationEncoder) -> list[TokenRow]:
    """Conversations as tokens, of which those of the last turn are labelled, but not the one that ends it."""
    return [
        TokenRow(
            row.ids, [flag and token not in encoder.end_ids for token, flag in zip(row.ids, row.trained, strict=True)]
        )
        for row in encoder.rows(conversations)
    ]


@dataclass(frozen=True)
class ChoiceJob:
    """Questions for one model."""

    task: ChoiceTask
    scoring: "Scoring"

    @property
    def is_done(self) -> bool:
        """Whether everything is scored."""
        return self.scoring.is_done

    @property
    def longest(self) -> int:
        """The largest number of tokens that are scored together."""
        return self.scoring.longest

    def run(self) -> Measured:
        """Score the answers."""
        logprobs, questions = iter(self.scoring.run()), self.task.questions
        sums = [[next(logprobs) for _ in question.choices] for question in questions]
        found = list(zip(questions, sums, strict=True))
        scores = {score: Scores(_right(found, score), 0) for score in self.task.config.score}
        clusters = {str(each.line): each.cluster for each in questions if each.cluster is not None}
        return Measured(scores, len(found), clusters or None, samples=[_sample(*each) for each in found[:_SAMPLES]])


def _right(found: Sequence[tuple[Question, Sequence[float]]], score: Score) -> dict[str, float | None]:
    """Whether the most likely answer is the right one, 1 or 0, by the question's line."""
    return {str(question.line): float(most_likely(question, sums, score) == question.gold) for question, sums in found}


def most_likely(question: Question, logprobs: Sequence[float], score: Score) -> int:
    """The place of the most likely answer, the first of several; `acc_norm` divides by its length in UTF-8 bytes."""
    lengths = [len(choice.encode()) if score == "acc_norm" else 1 for choice in question.choices]
    values = [logprob / length for logprob, length in zip(logprobs, lengths, strict=True)]
    return values.index(max(values))


def _sample(question: Question, logprobs: Sequence[float]) -> dict[str, Any]:
    return {
        "id": str(question.line),
        "prompt": question.prompt.messages[-1].content,
        "gold": question.choices[question.gold],
        "completion": question.choices[most_likely(question, logprobs, "acc")],
        "reward": float(most_likely(question, logprobs, "acc") == question.gold),
    }
