"""Task `graded`: answers get the rewards that reinforcement learning would give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from posttrain.config.sections.generation import AnsweringConfig
from posttrain.dataserver.config.prompts import DataserverPromptsConfig, FilePromptsConfig, form_of_prompts
from posttrain.evaluate.statistics.estimate import Clusters
from posttrain.evaluate.statistics.pass_at_k import prompt_pass_at_k
from posttrain.evaluate.statistics.scores import Scores, scores_of_answers
from posttrain.evaluate.tasks.base import LoadedTask, Measured, SamplingChange, Setting, TaskConfig

if TYPE_CHECKING:
    from posttrain.evaluate.grading import Grades
    from posttrain.evaluate.models import Asking, Model
    from posttrain.evaluate.prompts import GradedPrompts

_SAMPLES = 10


class _Graded(TaskConfig):
    type: Literal["graded"]
    """Answers are generated and graded; the score is the mean reward."""

    n: int = Field(default=1, ge=1)
    """Answers per prompt; more than one requires a temperature above 0."""

    k: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Also report pass@k for these k: the chance that at least one of k answers gets reward 1."""

    sampling: SamplingChange = SamplingChange()
    """What differs from the config's sampling options."""

    @property
    def measures(self) -> Sequence[str]:
        """The mean reward, pass@k, and each grader's mean if there are several."""
        return ("reward", *(f"pass@{each}" for each in self.k), "graders/*")

    @field_validator("k")
    @classmethod
    def _k_is_at_most_n(cls, k: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if "n" in info.data and (large := [each for each in k if each > info.data["n"]]):
            raise ValueError(f"pass@{large[0]} needs at least {large[0]} answers per prompt; raise n")
        return k


class GradedDataserverTask(_Graded, DataserverPromptsConfig):
    """Rows of a dataserver's config, answered and graded."""

    def load(self, name: str, setting: Setting) -> LoadedTask:
        """Read and check the rows; ConfigError or DataError if they are wrong."""
        from posttrain.evaluate.prompts import read_prompts

        return _task(name, self, setting, read_prompts(name, self, self.prompts, setting.graders))


class GradedFileTask(_Graded, FilePromptsConfig):
    """Rows of a file, answered and graded."""

    def load(self, name: str, setting: Setting) -> LoadedTask:
        """Read and check the rows; ConfigError or DataError if they are wrong."""
        from posttrain.evaluate.prompts import read_prompts

        code = setting.allow_code_execution
        prompts = read_prompts(name, self, self.prompts, setting.graders, allow_code_execution=code)
        return _task(name, self, setting, prompts)


AnyGradedTask = Annotated[
    Annotated[GradedDataserverTask, Tag("rows")] | Annotated[GradedFileTask, Tag("file")],
    Discriminator(form_of_prompts),
]


@dataclass(frozen=True)
class GradedTask:
    """Prompts that have been read, to be asked and graded."""

    name: str
    config: GradedDataserverTask | GradedFileTask
    setting: Setting
    prompts: "GradedPrompts"
    clusters: Clusters | None

    @property
    def size(self) -> int:
        """Number of prompts."""
        return len(self.prompts.rows)

    @property
    def sampling(self) -> AnsweringConfig:
        """How the prompts are answered."""
        return self.config.sampling.applied_to(self.setting.sampling)

    def job(self, model: "Model") -> "GradedJob":
        """The prompts for `model`; DataError if one cannot be asked."""
        from posttrain.evaluate.models import Questions

        questions = Questions(self.prompts.rows, self.config.n, self.sampling, self.setting.skip_unusable)
        return GradedJob(self, model.asking(self.name, questions, self.setting.folder / "answers"))


def _task(
    name: str, config: GradedDataserverTask | GradedFileTask, setting: Setting, prompts: "GradedPrompts"
) -> GradedTask:
    clusters = None if config.cluster is None else prompts.clusters(config.cluster)
    return GradedTask(name, config, setting, prompts, clusters)


@dataclass(frozen=True)
class GradedJob:
    """A graded task for one model."""

    task: GradedTask
    asking: "Asking"

    @property
    def is_done(self) -> bool:
        """Whether all answers are there."""
        return self.asking.is_done

    @property
    def longest(self) -> int:
        """The largest number of tokens of a prompt and its answer together; 0 for a server."""
        return self.asking.longest

    def run(self) -> Measured:
        """Get and grade the answers."""
        from posttrain.evaluate.grading import graded

        task = self.task
        grades = graded(task.prompts, self.asking.run(), task.setting.folder / "grades")
        sample_ids = [row.facts["sample_id"] for row in task.prompts.rows]
        return measured(grades, sample_ids, task.config.k, task.clusters)


def measured(
    grades: "Grades", prompts: Sequence[str], k: Sequence[int] = (), clusters: Clusters | None = None
) -> Measured:
    """Scores of graded answers: the mean reward, pass@k, and each grader's mean.

    Args:
        prompts: the sample ids of all prompts; one without answers counts as not graded.
    """
    lines = list(grades)
    rewards = _by_prompt(prompts, lines, lambda line: line["reward"])
    scores = {"reward": scores_of_answers(rewards)}
    for each in k:
        scores[f"pass@{each}"] = scores_of_answers(rewards, value=partial(prompt_pass_at_k, k=each))
    names = list(dict.fromkeys(name for line in lines for name in line["components"]))
    if len(names) > 1:
        scores |= {f"graders/{name}": _of_grader(prompts, lines, name) for name in names}
    samples = [_sample(line) for line in lines[:_SAMPLES]]
    return Measured(scores, sum(map(len, rewards.values())), clusters, _facts(lines), samples, grades.path)


def _facts(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    facts = {
        "cut": [line["stop_reason"] == "length" for line in lines],
        "empty": [not line["completion"].strip() for line in lines],
        "tokens": [line["completion_tokens"] for line in lines],
    }
    # A server may not tell how long its answers are.
    return {name: fmean(values) for name, values in facts.items() if values and None not in values}


def _of_grader(prompts: Sequence[str], lines: Sequence[Mapping[str, Any]], name: str) -> Scores:
    return scores_of_answers(_by_prompt(prompts, lines, lambda line: line["components"].get(name, {}).get("score")))


def _by_prompt(prompts: Sequence[str], lines: Sequence[Mapping[str, Any]], value: Any) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {sample_id: [] for sample_id in prompts}
    for line in lines:
        found[line["sample_id"]].append(value(line))
    return {sample_id: values or [None] for sample_id, values in found.items()}


def _sample(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": line["sample_id"], **{key: line[key] for key in ("prompt", "gold", "completion", "reward")}}
