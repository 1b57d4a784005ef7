"""The config file of `toolkit-eval`."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator, model_validator

from posttrain.config.sections.answerers import AnswererConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import AnsweringConfig, why_alike
from posttrain.config.sections.run import require_run_name
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine
from posttrain.dataserver.config.names import Fault, GraderCheck, NamedGraders, refuse
from posttrain.errors import ConfigError
from posttrain.evaluate.tasks.catalogue import AnyTask
from posttrain.evaluate.tasks.graded import GradedDataserverTask, GradedFileTask

KEPT = "kept"
"""Folder in the output for answers, grades and log-probabilities, which are found again by what they depend on."""
RESULTS, COMPARISON, REPORT = "results.json", "comparison.md", "report.html"
"""The files in the output."""
_TAKEN = {KEPT, RESULTS, COMPARISON, REPORT}


class EvalConfig(StrictModel):
    """Measure models on tasks, and compare them."""

    output: ConfigPath = Path("runs/eval")
    """Folder for answers and results; what is there is used again if nothing it depends on has changed."""

    models: dict[OneLine, AnswererConfig] = Field(default_factory=dict)
    """The models, by the names shown in tables; configs on the command line are added."""

    baseline: OneLine | None = None
    """The model that the others are compared with; by default the first one."""

    allow_code_execution: bool = False
    """Whether graders of tasks with files may run code written by a model; see docs/security.md."""

    graders: NamedGraders = Field(default_factory=dict)
    """Graders with parameters of their own, by the names that tasks with files use."""

    tasks: dict[OneLine, AnyTask] = Field(min_length=1)
    """What is measured, by the names shown in tables."""

    sampling: AnsweringConfig = AnsweringConfig()
    """How prompts are answered, unless a task changes it."""

    on_bad_record: OnBadRecord = "error"
    """Whether a row that cannot be read or asked stops the command, or is left out and reported."""

    max_ungraded_share: float = Field(default=0.02, ge=0, le=1)
    """If more of a model's answers have no grade, its task counts as failed: a comparison would be of the rest."""

    @field_validator("models", "tasks")
    @classmethod
    def _names_are_files(cls, named: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        faults = [Fault((name,), name, fault) for name in named if (fault := name_fault(name, info.field_name or ""))]
        refuse(faults)
        return named

    @field_validator("tasks")
    @classmethod
    def _graders_fit(cls, tasks: dict[str, AnyTask], info: ValidationInfo) -> dict[str, AnyTask]:
        if "graders" in info.data:
            check = GraderCheck(info.data["graders"], info.data.get("allow_code_execution", True))
            refuse(
                check.dataset_faults({name: task for name, task in tasks.items() if isinstance(task, GradedFileTask)})
            )
        return tasks

    @model_validator(mode="after")
    def _answers_differ(self) -> "EvalConfig":
        faults = []
        for name, task in self.tasks.items():
            if isinstance(task, GradedDataserverTask | GradedFileTask):
                temperature = task.sampling.applied_to(self.sampling).temperature
                if fault := why_alike(task.n, temperature):
                    faults.append(Fault(("tasks", name, "n"), task.n, fault))
        refuse(faults)
        return self


def name_fault(name: str, section: str) -> str | None:
    """Why a model's or task's name cannot be that of a folder or file; None if it can."""
    if section == "models" and name in _TAKEN:
        return f"{name} is a name of its own in the output; choose another one"
    try:
        require_run_name(name)
    except ConfigError as error:
        return str(error).replace("a run's name", "the name")
    return None
