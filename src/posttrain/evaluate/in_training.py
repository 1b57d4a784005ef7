"""Graded answers of the model in training, by the tasks of an evaluation's config."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import gather_object

from posttrain.base.console import console
from posttrain.base.files import described_hash
from posttrain.base.processes import is_main_process, process_count, process_rank
from posttrain.base.text import counted
from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.evaluation import GradedEvaluationConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError, RunError, ToolkitError
from posttrain.evaluate.config import EvalConfig
from posttrain.evaluate.grading import Answered, Line, grade_answers
from posttrain.evaluate.tasks.base import Setting
from posttrain.evaluate.tasks.graded import GradedTask
from posttrain.inference.answering.rows import Prompts, Room, encode_prompts
from posttrain.inference.engine import Completion, Key, Sampling, StopReason, completion_text
from posttrain.inference.load import ModelText, end_ids, load_text
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.models.backend import LoadedModel
from posttrain.train.evaluate import EVALUATIONS, answer_means, keep_answers
from posttrain.train.memory import Phase, during
from posttrain.train.parallel.ranks import from_main_process
from posttrain.train.recipe import Evaluation


class EvaluatedConfig(Protocol):
    """The config of a training command with graded evaluations."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def chat(self) -> ChatConfig: ...

    @property
    def evaluation(self) -> GradedEvaluationConfig | None: ...


@dataclass(frozen=True)
class TrainingTasks:
    """Tasks whose prompts have been read and encoded.

    Attributes:
        prompts: of each task.
    """

    config: GradedEvaluationConfig
    text: ModelText
    tasks: Sequence[GradedTask]
    prompts: Sequence[Prompts]

    @classmethod
    def read(cls, training: EvaluatedConfig) -> "TrainingTasks | None":
        """Read and check the tasks of a training config, if it names some, and their prompts.

        Raises:
            ConfigError, DataError: the tasks are wrong, none is graded, or a prompt cannot be asked.
            ModelError: the tokenizer cannot be loaded.
        """
        config, chat = training.evaluation, training.chat
        if config is None:
            return None
        settings, text = load_config(config.tasks, EvalConfig), load_text(training.model, chat)
        tasks = list(_graded_tasks(config, settings))
        prompts = []
        for task in tasks:
            room = Room(chat.max_length, task.sampling.max_new_tokens, text.positions)
            prompts.append(encode_prompts(task.prompts.rows, text.encoder, room, settings.on_bad_record))
        return cls(config, text, tasks, prompts)

    @property
    def identity(self) -> str:
        """Changes with what is asked, how it is answered, and how it is graded."""
        described = [
            [
                task.name,
                task.prompts.grading_id,
                task.config.n,
                task.sampling.model_dump(mode="json"),
                described_hash({"prompts": prompts.ids}),
            ]
            for task, prompts in zip(self.tasks, self.prompts, strict=True)
        ]
        return described_hash({"tasks": described})

    def evaluation(self, loaded: LoadedModel, run: Path) -> Evaluation:
        """The evaluation of the model in training; answers are kept in the run's folder."""
        ends = end_ids(loaded, self.text.encoder)
        batch_size = self.tasks[0].setting.sampling.batch_size
        evaluator = _Evaluator(self, LoadedModelEngine(loaded, ends, batch_size), run / EVALUATIONS)
        return Evaluation(self.config, "reward", evaluator.evaluate)


def planned_tasks(training: EvaluatedConfig) -> TrainingTasks | None:
    """Read and check the tasks for `--dry-run`, and print what is asked when; errors as `TrainingTasks.read`."""
    tasks = TrainingTasks.read(training)
    if tasks is not None:
        when = f"every {tasks.config.every} steps{' and at the start' * tasks.config.at_start}"
        asked = ", ".join(f"{task.name} ({counted(task.size, 'prompt')})" for task in tasks.tasks)
        console.print(f"evaluation      {asked}, {when}")
    return tasks


def _graded_tasks(config: GradedEvaluationConfig, settings: EvalConfig) -> Iterable[GradedTask]:
    setting = Setting(
        folder=config.tasks.parent,
        sampling=settings.sampling,
        graders=settings.graders,
        allow_code_execution=settings.allow_code_execution,
        skip_unusable=settings.on_bad_record == "skip",
    )
    names = config.only or [name for name, task in settings.tasks.items() if task.type == "graded"]
    if not names:
        raise ConfigError(f"evaluation.tasks: {config.tasks} has no graded tasks")
    for name in names:
        task = settings.tasks.get(name)
        if task is None or task.type != "graded":
            raise ConfigError(f"evaluation.only: {config.tasks} has no graded task {name!r}")
        if config.prompts is not None:
            task = task.model_copy(update={"prompts": min(config.prompts, task.prompts or config.prompts)})
        loaded = task.load(name, setting)
        assert isinstance(loaded, GradedTask)
        yield loaded


@dataclass(frozen=True)
class _Evaluator:
    """Answers the prompts, and has the answers graded by the main process; each rank answers a share."""

    tasks: TrainingTasks
    engine: LoadedModelEngine
    folder: Path

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Means over the prompts: reward, each grader's score, length, and shares of what went wrong.

        Those of the first task have no prefix, those of another one its name.

        Raises:
            RunError: no answer of the first task has a reward.
            ConfigError: a grader cannot be loaded.
        """
        began = time.perf_counter()
        with during(Phase.GENERATE, f"while held-out prompts were answered after optimizer step {step}"):
            answered = [self._answers(task, prompts) for task, prompts in self._each()]
        values = from_main_process(self._graded(answered, step) if is_main_process() else {})
        if isinstance(values, str):  # on every rank, so that none waits for the others
            raise RunError(values)
        values["seconds"] = time.perf_counter() - began
        told = "  ".join(
            f"{task.name} {values[_prefix(number, task) + 'reward']:.3f}" for number, task in self._numbered()
        )
        return values, f"held-out reward {told}"

    def _each(self) -> Iterable[tuple[GradedTask, Prompts]]:
        return zip(self.tasks.tasks, self.tasks.prompts, strict=True)

    def _numbered(self) -> Iterable[tuple[int, GradedTask]]:
        return enumerate(self.tasks.tasks)

    def _answers(self, task: GradedTask, prompts: Prompts) -> list[tuple[Key, Completion]]:
        """The answers of all ranks, in order."""
        requests = prompts.requests(task.config.n, task.sampling.seed)
        mine = range(process_rank(), len(requests), process_count())
        made = self.engine.complete([requests[place] for place in mine], Sampling.of(task.sampling))
        found = [((mine[place], sample), completion) for (place, sample), completion in made.items()]
        return sorted(found if process_count() == 1 else gather_object(found), key=lambda each: each[0])

    def _graded(self, answered: Sequence[Sequence[tuple[Key, Completion]]], step: int) -> dict[str, float] | str:
        """The values of all tasks, or why there are none."""
        values: dict[str, float] = {}
        lines: list[Line] = []
        try:
            asked = zip(self._numbered(), self.tasks.prompts, answered, strict=True)
            for (number, task), prompts, completions in asked:
                graded = grade_answers(task.prompts, [self._answer(task, prompts, *each) for each in completions])
                own = [{"task": task.name, **_kept(line)} for line in graded]
                found = answer_means(own, f"answers of {task.name}")
                values |= {_prefix(number, task) + name: value for name, value in found.items()}
                lines += own
        except ToolkitError as error:
            return str(error)
        keep_answers(self.folder, step, lines)
        return values

    def _answer(self, task: GradedTask, prompts: Prompts, key: Key, completion: Completion) -> Answered:
        row = prompts.rows[key[0]]
        return Answered(
            place=row.place,
            number=key[0],
            sample_id=row.facts["sample_id"],
            iteration=0,
            text=completion_text(self.tasks.text.tokenizer, completion, task.sampling.stop),
            completion_tokens=len(completion.token_ids),
            truncated=completion.stop_reason is StopReason.LENGTH,
            sample=key[1],
            stop_reason=str(completion.stop_reason),
        )


def _prefix(number: int, task: GradedTask) -> str:
    return f"{task.name}/" if number else ""


def _kept(line: Mapping[str, Any]) -> Line:
    """A graded answer for people to read, as toolkit-rl-train keeps it."""
    return {
        **{key: line[key] for key in ("sample_id", "prompt", "completion")},
        "tokens": line["completion_tokens"],
        **{key: line[key] for key in ("truncated", "status", "reward", "reason")},
        "scores": {name: component["score"] for name, component in line["components"].items()},
    }
