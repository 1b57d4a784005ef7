"""Step `eval`: measure the models of other steps, and compare them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.evaluate.config import EvalConfig
from posttrain.evaluate.tasks.base import TaskConfig
from posttrain.pipeline.machine import device_facts
from posttrain.pipeline.overlap import Prompts
from posttrain.pipeline.resolved import eval_facts, task_prompts
from posttrain.pipeline.steps.base import ConfiguredStep, Job, replaced

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context


class EvalStep(ConfiguredStep):
    """Runs `toolkit-eval`."""

    run: Literal["eval"]
    """Measure models, and compare them."""

    models: dict[OneLine, OneLine] = Field(min_length=1)
    """The steps whose models are measured, by the names shown in tables; `base` is the model before all training."""

    baseline: OneLine | None = None
    """The model that the others are compared with; by default the first one."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps whose models are measured, and those whose files are read."""
        return (*(step for step in self.models.values() if step != "base"), *super().needs)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the steps that are measured, and for those whose files it reads."""
        models = {label: names.get(step, step) for label, step in self.models.items()}
        return super().renamed(names).model_copy(update={"models": models})

    def job(self, name: str, context: "Context") -> Job:
        """Load the config with the models; ConfigError if something is wrong."""
        models = {label: context.model(step) for label, step in self.measured(context).items()}
        chosen = {label: {"config": str(model.config), "weights": model.weights} for label, model in models.items()}
        if self.baseline is not None and self.baseline not in self.models:
            raise ConfigError(
                f"steps.{name}.baseline: there is no model {self.baseline!r}, only {', '.join(self.models)}"
            )
        if not chosen:
            raise ConfigError(f"steps.{name}.models: all of them are skipped; skip {name} too")
        baseline = self.baseline if self.baseline in chosen else next(iter(chosen))
        values: dict[str, Any] = {"models": chosen, "baseline": baseline}
        config = load_config(
            self.config, EvalConfig, [*self.overrides(name, context), *replaced(name, "models", values)]
        )
        described = {label: context.described_model(model) for label, model in models.items()}
        key = {
            "run": "eval",
            **eval_facts(config),
            "models": described,
            "baseline": baseline,
            "machine": device_facts(),
        }
        return Job(key, to_yaml(config))

    def tasks(self, name: str, context: "Context") -> Mapping[str, TaskConfig]:
        """The tasks by name; ConfigError if the config is wrong."""
        return self._without_models(name, context).tasks

    def _without_models(self, name: str, context: "Context") -> EvalConfig:
        values = replaced(name, "models", {"models": {}, "baseline": None})
        return load_config(self.config, EvalConfig, [*self.overrides(name, context), *values])

    def held_out(self, name: str, context: "Context") -> Prompts:
        """The prompts of all tasks."""
        return task_prompts(self._without_models(name, context))

    def models_used(self, context: "Context") -> list[str]:
        """The models that are measured."""
        return list(self.measured(context).values())

    def measured(self, context: "Context") -> dict[str, str]:
        """The models that are measured, without those of steps that are skipped."""
        return {label: step for label, step in self.models.items() if step not in context.skipped}

    def left_out(self, context: "Context") -> list[str]:
        """The names of the models that are not measured because their steps are skipped."""
        return [label for label in self.models if label not in self.measured(context)]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Measure; what was answered before is not asked again."""
        return [["eval", str(config), "--set", f"output={json.dumps(str(folder))}"]]

    def outputs(self, folder: Path) -> list[Path]:
        """The results."""
        return [folder / "results.json"]
