"""What all steps of a pipeline have in common."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue

from posttrain.config.keys import read_dotted
from posttrain.config.load import Override
from posttrain.config.sections.run import require_run_name
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine
from posttrain.dataserver.config.names import Fault
from posttrain.errors import ConfigError
from posttrain.pipeline.overlap import Prompts

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context


_RESERVED = {
    "base": "the model before all training",
    "previous": "the model that a round starts from",
    "out": "a program's own folder",
}
_CHAT = ("template", "template_variables", "default_system", "reasoning_tags", "solution_tags", "max_length")


class InputConfig(StrictModel):
    """A file that another step makes."""

    from_: OneLine = Field(alias="from")
    """The step that makes it."""

    file: OneLine = Field(min_length=1)
    """Its name there."""


@dataclass(frozen=True)
class Model:
    """A model that a step makes, or will make.

    Attributes:
        base: the name of the model below the adapter; the model itself if all weights were trained.
        adapter: the folder of the adapter; None if there is none.
        config: a config that names the model: that of its run, or one that is written from `sections`.
        weights: which weights of that config are meant, as in a config's `models`.
        sections: the sections `model` and `chat` of a config that names it.
        lora: the adapter's section of a config.
    """

    base: str
    adapter: Path | None
    config: Path
    weights: Literal["base", "adapter"]
    sections: Mapping[str, Mapping[str, Any]]
    lora: Mapping[str, Any] | None = None

    @property
    def text(self) -> dict[str, Any]:
        """By which settings a conversation becomes tokens."""
        chat, model = self.sections["chat"], self.sections["model"]
        return {**{f"chat.{key}": chat[key] for key in _CHAT}, "model.added_tokens": list(model["added_tokens"])}

    @property
    def folder(self) -> Path:
        """The folder with its weights."""
        return self.adapter or Path(self.base)


@dataclass(frozen=True)
class Job:
    """A step that is ready to run, or would be if the steps that it needs had run.

    Attributes:
        key: what the step depends on, besides what other steps make: equal for equal results.
        config: the resolved config to run with, as YAML; None if the step has none.
    """

    key: Mapping[str, Any]
    config: str | None = None


class StepConfig(StrictModel):
    """Keys that all steps have."""

    enabled: bool = True
    """Whether the step runs; if not, steps that start from it start from where it starts itself."""

    launch: tuple[OneLine, ...] = ()
    """Words before the command, such as `[torchrun, --standalone, --nproc-per-node, "2"]`."""

    resumes: ClassVar[bool] = True
    """Whether what an interrupted attempt left is of use; if not, each attempt gets an empty folder."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps whose results it uses."""
        return ()

    @property
    def starts_from(self) -> str | None:
        """The step whose model stands for this step's if this one is skipped; None if there is none."""
        return None

    def trained(self, name: str, context: "Context") -> Prompts:
        """The prompts that are trained on, with their places; of files that other steps make, once they are there.

        Raises:
            ConfigError, DataError: something is wrong.
        """
        yield from ()

    def held_out(self, name: str, context: "Context") -> Prompts:
        """The prompts that must not be trained on; errors as `trained`."""
        yield from ()

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the steps that it refers to, where `names` has one."""
        return self

    def models_used(self, context: "Context") -> list[str]:
        """The steps whose models its commands name by a config."""
        return []

    def file_names(self, name: str, context: "Context") -> Collection[str] | None:
        """The names of the files that it makes for other steps; None if they are not known before.

        Raises:
            ConfigError: something is wrong.
        """
        return None

    def job(self, name: str, context: "Context") -> Job:
        """Load and check everything that the step names.

        Raises:
            ConfigError, DataError, ModelError: something is wrong.
        """
        raise NotImplementedError

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """The commands that make the step's results in `folder`, to be run one after another.

        Each is the name of a command of the toolkit and its arguments, or `--` and any program with its arguments.

        Args:
            config: the file with the resolved config.
            resume: whether an earlier attempt has left something in the folder.
        """
        return []

    def make(self, folder: Path, context: "Context") -> None:
        """Make the step's results, if it runs no command; RunError if that fails."""

    def outputs(self, folder: Path) -> list[Path]:
        """The files whose content other steps may use; each must exist once the step has run."""
        raise NotImplementedError

    def further_files(self, folder: Path) -> list[Path]:
        """Files that are read later, whose content is no result: it may differ when the step is run again."""
        return []

    def digest(self, folder: Path, context: "Context") -> str | None:
        """What other steps depend on, if it is not the content of `outputs`."""
        return None

    def model(self, folder: Path, context: "Context") -> Model | None:
        """The model that the step makes in `folder`; None if it makes none."""
        return None

    def start_model(self, context: "Context") -> Model | None:
        """The model that the step trains, if it starts from no other step; else None."""
        return None


class ConfiguredStep(StepConfig):
    """A step that runs a command with a config of its own."""

    config: ConfigPath
    """The command's config; it can also be run by itself."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys to replace in it, such as `training.max_steps: 40`."""

    inputs: dict[str, InputConfig] = Field(default_factory=dict)
    """Keys of it that name files made by other steps, such as
    `datasets.pairs.path: {from: pairs, file: pairs.jsonl}`."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps whose files it reads."""
        return tuple(each.from_ for each in self.inputs.values())

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the steps whose files it reads."""
        inputs = {
            key: each.model_copy(update={"from_": names.get(each.from_, each.from_)})
            for key, each in self.inputs.items()
        }
        return self.model_copy(update={"inputs": inputs})

    def overrides(self, name: str, context: "Context") -> list[Override]:
        """The keys that the pipeline replaces in the config; paths among them are relative to the config."""
        found = [_override(name, f"set.{key}", key, value) for key, value in self.set.items()]
        for key, each in self.inputs.items():
            self._require_made(f"steps.{name}.inputs.{key}", each, context)
            path = str(context.step_folder(each.from_) / each.file)
            found.append(_override(name, f"inputs.{key}", key, path))
        return found

    def _require_made(self, where: str, wanted: InputConfig, context: "Context") -> None:
        maker = context.steps[wanted.from_]
        if wanted.from_ in context.skipped:
            raise ConfigError(f"{where}: {wanted.from_} is skipped, so it makes no file; skip this step too")
        names = maker.file_names(wanted.from_, context)
        if names is not None and wanted.file not in names:
            raise ConfigError(f"{where}: {wanted.from_} makes no {wanted.file!r}, only {', '.join(names)}")


def _override(step: str, where: str, key: str, value: Any) -> Override:
    head = read_dotted(f"{key}=")
    if head is None or head[1] != "=":
        raise ConfigError(f"steps.{step}.{where}: {key!r} is not a key such as section.key")
    return Override(head[0], value, f"steps.{step}.{where}")


def replaced(step: str, why: str, values: Mapping[str, Any]) -> list[Override]:
    """Keys that a step's own keys replace in its config; `why` names that key in messages."""
    return [_override(step, why, key, value) for key, value in values.items()]


def name_fault(name: str) -> Fault | None:
    """Why a step cannot have a name; None if it can."""
    if name in _RESERVED:
        return Fault((name,), name, f"{name} stands for {_RESERVED[name]}; choose another name")
    if "." in name or "/" in name:
        return Fault((name,), name, "a step's name must not contain a dot or a slash")
    try:
        require_run_name(name)
    except ConfigError as error:
        return Fault((name,), name, str(error).replace("a run's name", "a step's name"))
    return None
