"""Step `merge`: the model of another step with its adapter merged in."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.pipeline.steps.base import Job, Model, StepConfig

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_MADE = ("*.safetensors", "config.json", "tokenizer.json", "chat_template.jinja")


class MergeStep(StepConfig):
    """Runs `toolkit-merge`."""

    run: Literal["merge"]
    """Merge an adapter into its base."""

    of: OneLine
    """The step whose adapter is merged."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(default=None)
    """Type of the merged weights; the base's by default."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose adapter is merged."""
        return (self.of,)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with another name for the step whose adapter is merged."""
        return self.model_copy(update={"of": names.get(self.of, self.of)})

    def job(self, name: str, context: "Context") -> Job:
        """Check that there is an adapter; ConfigError if not."""
        if context.model(self.of).adapter is None:
            raise ConfigError(f"steps.{name}.of: {self.of} trains all weights, so there is no adapter to merge")
        return Job({"run": "merge", "dtype": self.dtype})

    def models_used(self, context: "Context") -> list[str]:
        """The model whose adapter is merged."""
        return [self.of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Merge; what a killed merge left is made again."""
        model = context.model(self.of)
        return [["merge", str(model.config), f"--output={folder}", *([f"--dtype={self.dtype}"] if self.dtype else [])]]

    def outputs(self, folder: Path) -> list[Path]:
        """The weights, their config and tokenizer."""
        return sorted({path for pattern in _MADE for path in folder.glob(pattern)})

    def model(self, folder: Path, context: "Context") -> Model:
        """The merged model."""
        start = context.model(self.of)
        model = {**start.sections["model"], "name": str(folder), "revision": None, "adapter": None, "added_tokens": []}
        return Model(str(folder), None, context.model_file(folder), "base", {**start.sections, "model": model})
