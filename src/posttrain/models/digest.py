"""Which weights a run stands on, told by the content of their files; nothing is loaded or downloaded.

What a name points to can change under it: a run of an earlier stage is merged again, a branch on a hub moves on.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.base.file_digests import file_digest
from posttrain.errors import ModelError
from posttrain.models.location import locate_model

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig

_INDEX = "model.safetensors.index.json"

# The weights, and what decides how they are computed with. Other formats are not read.
_OF_BASE = ("*.safetensors", "config.json")
_OF_ADAPTER = ("*.safetensors", "adapter_config.json")


def weights_digest(config: "ModelConfig") -> str | None:
    """Hash of the files of the base model's weights and of its adapter's, as 32 hex digits.

    Names and content count, and the folders do not: a model that was moved is the same. Of a `.gguf` file the file
    itself counts, not what it was converted to.

    Returns:
        None as long as the weights of a Hugging Face id are not all in the hub's cache on this machine.

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
    folder = Path(location.path) if location.kind == "folder" else _whole_snapshot(location.path, config.revision)
    return None if folder is None else list(_files(folder, _OF_BASE))


def _files(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Those in the folder itself, in the order of their names."""
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    return (file for file in sorted(found) if file.is_file())


def _described(config: "ModelConfig", file: Path) -> tuple[str, str]:
    try:
        return file.name, file_digest(file)
    except OSError as error:
        raise ModelError(f"{config.key}: cannot read {file}: {error.strerror or error}") from None


def _whole_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder in the hub's cache that has all weights of the model; None where there is none yet."""
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
        return None  # the loader says what is wrong with it
    return folder if all((folder / shard).is_file() for shard in shards) else None
