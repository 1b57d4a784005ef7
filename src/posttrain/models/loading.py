"""What the loaders of models are given, whose code they may run, and what they say where they fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig

from posttrain.base.console import console
from posttrain.base.text import first_line, on_one_line
from posttrain.errors import ModelError
from posttrain.models.gguf import converted_folder
from posttrain.models.location import CONVERT, locate_model

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig

_LOADERS_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def model_files(config: "ModelConfig") -> str:
    """A folder or a Hugging Face id that transformers can load; a GGUF file is converted first."""
    location = locate_model(config.name, config.key)
    return str(converted_folder(Path(location.path))) if location.kind == "gguf" else location.path


def require_trust(config: "ModelConfig", files: str) -> None:
    """Say that code which the model brings along is run; where that is not wanted, refuse a model that needs it.

    Raises:
        ModelError: the model is of no kind that is known here, and its own code may not run.
    """
    if config.trust_remote_code:
        _announce_trust(config.key, config.name)
        return
    try:
        AutoConfig.from_pretrained(files, **source_of(config))
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{config.key}.name: {config.name} is a model of a kind of its own, made by Python code that it brings "
            f"along; read that code, and where you trust it set {config.key}.trust_remote_code: true"
        ) from None


@cache
def _announce_trust(key: str, name: str) -> None:
    console.print(f"{key}.trust_remote_code: Python code that {on_one_line(name)} brings along runs with your rights")


def source_of(config: "ModelConfig") -> dict[str, Any]:
    """What each `from_pretrained` is told besides the files."""
    return {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}


@contextmanager
def one_line_errors(config: "ModelConfig") -> Iterator[None]:
    """Turn the loaders' many errors into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except (*_LOADERS_ERRORS, SafetensorError, StrictDataclassError, UnpicklingError) as error:
        reason = first_line(error)
        if "with `safetensors`" in reason:  # transformers advises to read the pickles then
            raise ModelError(f"{config.key}.name: {config.name} has no weights as safetensors; {CONVERT}") from error
        if "trust_remote_code" in str(error):
            reason = f"it brings Python code along, which only {config.key}.trust_remote_code: true lets run"
        raise ModelError(
            f"{config.key}.name: cannot load {config.name!r}: {reason} "
            "(without a hub, give a local folder, a .gguf file or smollm2-135m-instruct)"
        ) from error
