"""Step `export`: the model of another step as a GGUF file that has been compared with it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from posttrain.config.strict import ConfigPath
from posttrain.config.values import OneLine
from posttrain.export.gguf_types import GgufType
from posttrain.pipeline.steps.base import Job, StepConfig

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_FILE = "model.gguf"


class ExportStep(StepConfig):
    """Runs `toolkit-export`."""

    run: Literal["export"]
    """Write a model for llama.cpp and ollama."""

    of: OneLine
    """The step whose model is written."""

    type: GgufType = "q8_0"
    """How weights are stored."""

    llama_cpp: ConfigPath | None = None
    """A folder of llama.cpp that you have built; by default the packages of `requirements-gguf.txt`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The step whose model is written."""
        return (self.of,)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with another name for the step whose model is written."""
        return self.model_copy(update={"of": names.get(self.of, self.of)})

    def job(self, name: str, context: "Context") -> Job:
        """Check that there is a model, and llama.cpp; ConfigError if not."""
        from posttrain.export.llama_cpp import find_llama_cpp

        context.model(self.of)
        find_llama_cpp(self.llama_cpp, self.type)
        return Job({"run": "export", "type": self.type})

    def models_used(self, context: "Context") -> list[str]:
        """The model that is written."""
        return [self.of]

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Write the file; what a killed export left is made again."""
        words = [f"--type={self.type}", f"--output={folder / _FILE}"]
        words += [] if self.llama_cpp is None else [f"--llama-cpp={self.llama_cpp}"]
        model = context.model(self.of)
        words += ["--overwrite"] if resume and (folder / _FILE).exists() else []
        return [["export", str(model.config), f"--weights={model.weights}", *words]]

    def file_names(self, name: str, context: "Context") -> Collection[str]:
        """The file."""
        return [_FILE]

    def outputs(self, folder: Path) -> list[Path]:
        """The file."""
        return [folder / _FILE]
