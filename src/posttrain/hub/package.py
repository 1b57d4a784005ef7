"""The files of a model that go to a hub: by a list of what may go, without this machine's paths, without secrets."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.secrets import hidden, known_secrets
from posttrain.errors import ConfigError

CARD = "README.md"
ADAPTER_CONFIG = "adapter_config.json"

_ADAPTER = (ADAPTER_CONFIG, "adapter_model*.safetensors", "adapter_model*.safetensors.index.json")
_WHOLE = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "*.py")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "chat_template.jinja", "LICENSE*", "NOTICE*"),
)
# What transformers and PEFT write about the place where they found a model.
_OF_THIS_MACHINE = ("_name_or_path", "name_or_path", "is_local", "local_files_only")
_BINARY = (".safetensors", ".gguf", ".model")


@dataclass(frozen=True)
class Package:
    """Files by their paths in the repository: where each is, or its bytes.

    Attributes:
        owned: patterns of the files that make up a model of this kind; others of them in the repository are of another
            model, and would be loaded in this one's place or beside it.
    """

    files: Mapping[str, Path | bytes]
    owned: tuple[str, ...] = ()

    def owns(self, name: str) -> bool:
        """Whether a file in the repository belongs to the model that is replaced."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.owned)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        sizes = (len(each) if isinstance(each, bytes) else each.stat().st_size for each in self.files.values())
        return sum(sizes)


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, and not a whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def model_files(folder: Path) -> list[str]:
    """Names of the files of the model in a folder, sorted."""
    patterns = (*(_ADAPTER if is_adapter(folder) else _WHOLE), *_TOKENIZER)
    found = {file.name for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return sorted(found)


def model_package(folder: Path, card: str, base: str | None, revision: str | None) -> Package:
    """The model in a folder, with its card.

    Args:
        base: Hugging Face id of the base, which an adapter names; a whole model needs none.
        revision: of the base.

    Raises:
        ConfigError: a file holds a secret of the environment.
    """
    files: dict[str, Path | bytes] = {name: folder / name for name in model_files(folder)}
    for name in files:
        if name.endswith("config.json"):
            changes = {"base_model_name_or_path": base, "revision": revision} if name == ADAPTER_CONFIG else {}
            files[name] = _without_this_machine(folder / name, changes)
    # The patterns of both kinds: an adapter's config beside a whole model, or the reverse, would be read first.
    owned = (*(pattern for pattern in _ADAPTER + _WHOLE if pattern != "*.py"),)
    return _checked(Package({CARD: card.encode(), **files}, owned))


def file_package(files: Sequence[Path], card: str) -> Package:
    """Files that stand for themselves, such as those in GGUF, with a card; errors as `model_package`."""
    return _checked(Package({CARD: card.encode(), **{file.name: file for file in files}}))


def _without_this_machine(path: Path, changes: Mapping[str, Any]) -> bytes:
    """A JSON file with some of its keys changed, and without what is only true here."""
    config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in config.items() if key not in _OF_THIS_MACHINE}
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()


def _checked(package: Package) -> Package:
    secrets = known_secrets()
    for name, content in package.files.items():
        if name.endswith(_BINARY):
            continue
        text = (content if isinstance(content, bytes) else content.read_bytes()).decode("utf-8", "replace")
        if hidden(text, secrets) != text:
            raise ConfigError(
                f"{name} would be pushed with the value of a variable of the environment that is named like a secret "
                "(a token, key or password) or comes from --env-file; take it out"
            )
    return package
