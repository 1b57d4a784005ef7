"""Step `merge`: the model of another step with its adapter merged in."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from posttrain.base.files import atomic_write_text
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.pipeline.steps.base import Job, Model, StepConfig
from posttrain.pipeline.steps.training import TrainingStep

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_SAME = "same_model.txt"
_MADE = ("*.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", _SAME)


class MergeStep(StepConfig):
    """Runs `toolkit-merge`."""

    run: Literal["merge"]
    """Merge an adapter into its base."""

    of: OneLine
    """The step whose adapter is merged."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(default=None)
    """Type of the merged weights; the base's by default."""

    @property
    def starts_from(self) -> str | None:
        """The step whose adapter is merged."""
        return self.of

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose adapter is merged."""
        return (self.of,)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with another name for the step whose adapter is merged."""
        return self.model_copy(update={"of": names.get(self.of, self.of)})

    def job(self, name: str, context: "Context") -> Job:
        """Check that there is an adapter, or may be; ConfigError if not.

        A decision may end in a model without one, and so may a step that is skipped: that model is then passed on.
        """
        step = context.steps[self.of]
        if self._is_whole(context) and isinstance(step, TrainingStep) and self.of not in context.skipped:
            raise ConfigError(f"steps.{name}.of: {self.of} trains all weights, so there is no adapter to merge")
        return Job({"run": "merge", "dtype": self.dtype})

    def _is_whole(self, context: "Context") -> bool:
        return context.model(self.of).adapter is None

    def models_used(self, context: "Context") -> list[str]:
        """The model whose adapter is merged."""
        return [self.of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Merge; what a killed merge left is made again."""
        if self._is_whole(context):
            return []
        words = [str(context.model(self.of).config), f"--output={folder}"]
        words += [f"--dtype={self.dtype}"] if self.dtype else []
        return [["merge", *words, *(["--overwrite"] if resume else [])]]

    def make(self, folder: Path, context: "Context") -> None:
        """Write which model is passed on, if there is nothing to merge."""
        if self._is_whole(context):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write_text(folder / _SAME, f"{context.model(self.of).folder}\n")

    def outputs(self, folder: Path) -> list[Path]:
        """The weights, their config and tokenizer."""
        return sorted({path for pattern in _MADE for path in folder.glob(pattern)})

    def digest(self, folder: Path, context: "Context") -> str | None:
        """That of the model that is passed on, if there is nothing to merge."""
        return context.digest(self.of) if self._is_whole(context) else None

    def model(self, folder: Path, context: "Context") -> Model:
        """The merged model."""
        start = context.model(self.of)
        if start.adapter is None:
            return start
        model = {**start.sections["model"], "name": str(folder), "revision": None, "adapter": None, "added_tokens": []}
        return Model(str(folder), None, context.model_file(folder), "base", {**start.sections, "model": model})
