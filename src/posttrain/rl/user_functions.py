"""Advantages and losses that a user wrote: loaded, called once on an example, and held to their shapes."""

import hashlib
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.base.files import require_file
from posttrain.base.user_code import import_file, split_place
from posttrain.errors import ConfigError, RunError, ToolkitError
from posttrain.rl.config.objective import UserFunction
from posttrain.rl.losses import LossInputs
from posttrain.rl.presets import Objective


class UserTensors:
    """A function of the user's that makes a tensor."""

    def __init__(self, function: UserFunction) -> None:
        """Import the function.

        Raises:
            ConfigError: the file is not there, cannot be imported, or has no such function.
        """
        self._place, self._options = function.path, dict(function.options)
        file, name = split_place(function.path)
        self._file = Path(file)
        found = getattr(import_file(self._file), name, None)
        if not callable(found):
            raise ConfigError(f"{file} has no function {name!r}")
        self._function: Callable[..., Any] = found

    def __call__(self, *inputs: Any, shape: Sequence[int]) -> torch.Tensor:
        """What the function makes of the inputs and its options.

        Raises:
            RunError: it raised an error, or gave something else than finite numbers of this shape.
        """
        try:
            made = self._function(*inputs, self._options)
        except Exception as error:
            raise RunError(f"{self._where(error)}: {type(error).__name__}: {error}") from error
        if not isinstance(made, torch.Tensor) or list(made.shape) != list(shape):
            found = list(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
            raise RunError(
                f"{self._where()}: {self._place} must give a tensor of shape {list(shape)}, and gave {found}"
            )
        if not bool(made.isfinite().all()):
            raise RunError(f"{self._where()}: {self._place} gave a number that is not finite")
        return made

    def _where(self, error: BaseException | None = None) -> str:
        """The file, and the line of it that raised the error or begins the function."""
        frames = traceback.extract_tb(error.__traceback__) if error is not None else []
        lines = [frame.lineno for frame in frames if Path(frame.filename) == self._file]
        code = getattr(self._function, "__code__", None)
        line = lines[-1] if lines else getattr(code, "co_firstlineno", None)
        return f"{self._file}:{line}" if line else str(self._file)


def check_user_functions(objective: Objective) -> None:
    """Call each once on an example of two prompts with three completions each.

    Raises:
        ConfigError: one is not there, or does not give what it should.
    """
    try:
        if objective.advantage is not None:
            rewards = torch.tensor([[0.0, 1.0, torch.nan], [1.0, 0.5, 0.0]], dtype=torch.float64)
            lengths = torch.tensor([[2, 3, 1], [1, 1, 2]])
            UserTensors(objective.advantage)(rewards, lengths, shape=rewards.shape)
        if isinstance(objective.policy_loss, UserFunction):
            UserTensors(objective.policy_loss)(_example_inputs(), shape=(3, 2))
    except RunError as error:
        raise ConfigError(f"objective: {error}") from error


def digests(objective: Objective) -> dict[str, str]:
    """Hashes of the files of the user's functions, by the field that names them: part of what a run is.

    Raises:
        ToolkitError: a file is not there.
    """
    functions = {"objective.advantage": objective.advantage, "objective.policy_loss": objective.policy_loss}
    found = {}
    for key, function in functions.items():
        if isinstance(function, UserFunction):
            file = Path(split_place(function.path)[0])
            try:
                require_file(file)
            except ToolkitError as error:
                raise ConfigError(f"{key}: {error}") from None
            found[key] = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    return found


def _example_inputs() -> LossInputs:
    logprobs = torch.tensor([[-0.5, -1.0], [-2.0, -0.1], [-0.3, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    advantages = torch.tensor([[1.0], [-1.0], [0.0]])
    return LossInputs(logprobs, logprobs.detach(), advantages, mask, logprobs.detach(), logprobs.detach())
