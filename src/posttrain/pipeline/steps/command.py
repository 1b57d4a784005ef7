"""Step `command`: a program of the user's own."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from posttrain.base.cache import file_digest
from posttrain.base.files import described_hash, require_file
from posttrain.config.strict import ConfigPath
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError
from posttrain.pipeline.named_files import with_extended
from posttrain.pipeline.steps.base import Job, StepConfig

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context


class _Places(Formatter):
    """Fills in placeholders that may hold dots, as names of steps in rounds do."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """The value of a placeholder."""
        return kwargs[field_name], field_name


def _renamed(word: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        word = word.replace(f"{{{old}}}", f"{{{new}}}")
    return word


class CommandStep(StepConfig):
    """Runs a program; it succeeds if its exit code is 0 and its outputs are there."""

    run: Literal["command"]
    """Run a program."""

    argv: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments; `{out}` stands for the folder of this step, `{NAME}` for that of another step."""

    inputs: tuple[ConfigPath, ...] = ()
    """Files that it reads: if one changes, the step runs again."""

    outputs_: tuple[OneLine, ...] = Field(alias="outputs", min_length=1)
    """Names of the files that it writes into its folder."""

    after: tuple[OneLine, ...] = ()
    """Steps whose results it uses."""

    environment: tuple[OneLine, ...] = ()
    """Names of environment variables that it reads: if one changes, the step runs again."""

    resumes: ClassVar[bool] = False

    @field_validator("outputs_")
    @classmethod
    def _outputs_are_in_the_folder(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ValueError(f"{wrong[0]!r} is not in the folder of the step; name files in it")
        return names

    @property
    def needs(self) -> tuple[str, ...]:
        """The steps whose results it uses."""
        return self.after

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the steps whose results it uses."""
        after = {name: names.get(name, name) for name in self.after}
        argv = tuple(_renamed(word, after) for word in self.argv)
        return self.model_copy(update={"after": tuple(after.values()), "argv": argv})

    def job(self, name: str, context: "Context") -> Job:
        """Check files and placeholders; ConfigError or DataError if something is wrong."""
        for path in self.inputs:
            require_file(path)
        for word in self.argv:
            self._filled(word, name, Path("out"), context)
            if skipped := [step for step in self.after if f"{{{step}}}" in word and step in context.skipped]:
                raise ConfigError(f"steps.{name}.argv: {skipped[0]} is skipped, so it has no folder; skip {name} too")
        key = {
            "run": "command",
            "argv": [self._without_inputs(word) for word in self.argv],
            "files": {
                f"inputs[{number}], {os.path.relpath(each, path.parent)},": file_digest(each)
                for number, path in enumerate(self.inputs)
                for each in with_extended(path)
            },
            "outputs": list(self.outputs_),
            # Hashed, because they may be secrets.
            "environment": {variable: described_hash({"": os.environ.get(variable)}) for variable in self.environment},
        }
        return Job(key)

    def _without_inputs(self, word: str) -> str:
        """The word with numbers for the files of `inputs`, whose content counts and not where they are."""
        for number, path in enumerate(self.inputs):
            word = word.replace(str(path), f"<inputs[{number}]>")
        return word

    def _filled(self, word: str, name: str, out: Path, context: "Context") -> str:
        folders = {step: str(context.step_folder(step)) for step in self.after}
        try:
            return _Places().vformat(word, (), {"out": str(out), **folders})
        except (KeyError, IndexError, ValueError):
            known = ", ".join(f"{{{each}}}" for each in ("out", *self.after))
            raise ConfigError(
                f"steps.{name}.argv: {word!r} has another placeholder than {known}; braces of its own are doubled"
            ) from None

    def commands(self, folder: Path, config: Path, context: "Context", *, resume: bool) -> list[list[str]]:
        """Run the program."""
        return [["--", *(self._filled(word, folder.name, folder, context) for word in self.argv)]]

    def file_names(self, name: str, context: "Context") -> Collection[str]:
        """The files that it writes."""
        return self.outputs_

    def outputs(self, folder: Path) -> list[Path]:
        """The files that it writes."""
        return [folder / name for name in self.outputs_]
