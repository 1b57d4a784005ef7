"""Task `lm_eval`: a task of the lm-evaluation-harness, read from a YAML file with local data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field

from posttrain.base.extras import require_extra
from posttrain.base.files import require_file
from posttrain.config.strict import ConfigPath
from posttrain.conversation.encoder import conversation_encoder
from posttrain.errors import ConfigError
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.tasks.base import Measured, SamplingChange, Setting, TaskConfig

if TYPE_CHECKING:
    from posttrain.evaluate.harness import Asked, HarnessTask
    from posttrain.evaluate.logprobs import Scoring
    from posttrain.evaluate.models import Asking, Model

_READERS = ("json", "csv", "parquet", "text")
_SAMPLES = 10


class LmEvalTaskConfig(TaskConfig):
    """A task of the package lm_eval (EleutherAI's lm-evaluation-harness, 0.4), answered as a conversation."""

    type: Literal["lm_eval"]
    """The metrics of a task of lm_eval, by its own code, of answers to prompts in the format of training."""

    path: ConfigPath
    """The task's YAML file. Its data are local files (`dataset_path: json` with `data_files`, which start from its
    folder); what would run code (`!function`) or read other tasks (`include`) is refused."""

    shots: int | None = Field(default=None, ge=0)
    """Number of examples before the question; null takes the task's own number."""

    def load(self, name: str, setting: Setting) -> "LmEvalTask":
        """Read and check the task; ConfigError or DataError if it is wrong."""
        require_extra("lm-eval", f"tasks.{name}")
        from posttrain.evaluate.harness import HarnessTask

        return LmEvalTask(name, self, setting, HarnessTask.load(self.task(), self.path, self.shots, self.prompts))

    def task(self) -> dict[str, Any]:
        """The task's config, with whole paths of its data files.

        Raises:
            ConfigError, DataError: it is not one, its data are not there, or it needs code, other files or a network.
        """
        require_file(self.path)
        try:
            task = yaml.load(self.path.read_text(encoding="utf-8"), Loader=_NoCode)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} is not a task of lm_eval: {error}") from None
        if not isinstance(task, dict) or "task" not in task:
            raise ConfigError(f"{self.path} is not a task of lm_eval: it has no key `task`")
        for key, why in (("include", "write its keys into the file"), ("group", "name its tasks one by one")):
            if key in task:
                raise ConfigError(f"{self.path}: {key} is not read here; {why}")
        if not isinstance(task["task"], str):
            raise ConfigError(f"{self.path}: task is a list; name its tasks one by one")
        if task.get("dataset_path") not in _READERS:
            raise ConfigError(
                f"{self.path}: dataset_path is {task.get('dataset_path')!r}, but only local files are read: download "
                f"it, and say dataset_path: {' or '.join(_READERS)} with dataset_kwargs: {{data_files: …}}"
            )
        options = task.get("dataset_kwargs") or {}
        return {**task, "dataset_kwargs": {**options, "data_files": self._whole_paths(options.get("data_files"))}}

    def files(self) -> list[Path]:
        """The task's file and its data files; ConfigError as `task`."""
        return [self.path, *map(Path, _leaves(self.task()["dataset_kwargs"]["data_files"]))]

    def _whole_paths(self, files: Any) -> Any:
        if isinstance(files, Mapping):
            return {split: self._whole_paths(each) for split, each in files.items()}
        if isinstance(files, list):
            return [self._whole_paths(each) for each in files]
        if not isinstance(files, str):
            raise ConfigError(f"{self.path}: dataset_kwargs.data_files names no local file")
        path = self.path.parent / files
        require_file(path)
        return str(path)


class _NoCode(yaml.SafeLoader):
    """Reads a task's file without running what it names."""


def _refuse_code(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    place = f"{node.start_mark.line + 1}"
    raise yaml.YAMLError(f"line {place}: !function {node.value} would run code; use a task without it, or a grader")


_NoCode.add_constructor("!function", _refuse_code)


def _leaves(files: Any) -> Iterator[str]:
    if isinstance(files, str):
        yield files
        return
    for each in files.values() if isinstance(files, Mapping) else files:
        yield from _leaves(each)


@dataclass(frozen=True)
class LmEvalTask:
    """A task that has been read."""

    name: str
    config: LmEvalTaskConfig
    setting: Setting
    task: "HarnessTask"

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(self.task.chosen)

    def job(self, model: "Model") -> "LmEvalJob":
        """What `model` is asked.

        Raises:
            ConfigError: the task asks something that this model cannot answer.
            DataError: a question is too long.
        """
        asked = self.task.asked()
        asking = self._asking(model, asked) if asked.prompts else None
        scoring = self._scoring(model, asked) if asked.continuations else None
        return LmEvalJob(self, asked, asking, scoring)

    def _asking(self, model: "Model", asked: "Asked") -> "Asking":
        from posttrain.evaluate.models import Questions
        from posttrain.inference.answering.rows import Row

        rows = [
            Row(self.name, f"{self.config.path}, question {number}", number, number - 1, prompt)
            for number, prompt in enumerate(asked.prompts, start=1)
        ]
        sampling = SamplingChange(**asked.sampling).applied_to(self.setting.sampling)
        return model.asking(self.name, Questions(rows, 1, sampling), self.setting.folder / "answers")

    def _scoring(self, model: "Model", asked: "Asked") -> "Scoring":
        from posttrain.evaluate.logprobs import Scoring, require_local
        from posttrain.evaluate.tasks.choice import answer_tokens, answered

        local = require_local(model, self.name)
        chat = local.weights.chat.model_copy(update={"train_on": "last"})
        encoder = conversation_encoder(chat, local.text.tokenizer)
        rows = answer_tokens([answered(*each) for each in asked.continuations], encoder)
        return Scoring.of(local, self.name, rows, self.setting.folder / "logprobs")


@dataclass(frozen=True)
class LmEvalJob:
    """A task for one model."""

    task: LmEvalTask
    asked: "Asked"
    asking: "Asking | None"
    scoring: "Scoring | None"

    @property
    def is_done(self) -> bool:
        """Whether the model has said everything."""
        return all(each.is_done for each in (self.asking, self.scoring) if each is not None)

    @property
    def longest(self) -> int:
        """The largest number of tokens that are read together."""
        return max((each.longest for each in (self.asking, self.scoring) if each is not None), default=0)

    def run(self) -> Measured:
        """Ask, and let lm_eval compute its metrics."""
        texts = [] if self.asking is None else _texts(self.asking.run())
        logprobs = [] if self.scoring is None else self.scoring.run()
        lines = self.task.task.measured(self.asked, texts, logprobs)
        scores = scores_of(lines)
        clusters = self._clusters(lines)
        samples = [_sample(line) for line in lines if line["filter"] == lines[0]["filter"]][:_SAMPLES]
        return Measured(scores, self.task.size, clusters, samples=samples)

    def _clusters(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, str] | None:
        column = self.task.config.cluster
        if column is None:
            return None
        if missing := [line["doc_id"] for line in lines if column not in line["doc"]]:
            raise ConfigError(f"tasks.{self.task.name}.cluster: question {missing[0]} has no column {column!r}")
        return {str(line["doc_id"]): str(line["doc"][column]) for line in lines}


def _texts(answers: Path) -> list[str]:
    import json

    lines = answers.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"][-1]["content"] for line in lines]


def scores_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Scores]:
    """The value of each question by each metric, and by each of the task's filters if it has several.

    Metrics without a number for each question, such as BLEU, are left out.

    Args:
        lines: what lm_eval logs of each question and filter.

    Raises:
        ConfigError: there is no metric with a number for each question.
    """
    found: dict[str, dict[str, float | None]] = {}
    several = len({line["filter"] for line in lines}) > 1
    for line in lines:
        for metric in line["metrics"]:
            if isinstance(line[metric], int | float):
                name = f"{metric}/{line['filter']}" if several else metric
                found.setdefault(name, {})[str(line["doc_id"])] = float(line[metric])
    if not found:
        raise ConfigError("the task has no metric that gives each question a number")
    return {name: Scores(values, 0) for name, values in found.items()}


def _sample(line: Mapping[str, Any]) -> dict[str, Any]:
    reward = next((line[metric] for metric in line["metrics"] if isinstance(line[metric], int | float)), None)
    return {
        "id": str(line["doc_id"]),
        "prompt": line["prompt"],
        "gold": str(line["target"]),
        "completion": line["said"],
        "reward": None if reward is None else float(reward),
    }
