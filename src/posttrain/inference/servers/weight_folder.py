"""Where the servers find the weights of a version, checked before a server sees them."""

import json
import secrets
import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open

from posttrain.base.files import atomic_folder
from posttrain.config.sections.servers import ServersConfig, WeightsSent
from posttrain.errors import ModelError
from posttrain.inference.vllm import require_usable_adapter


def label_of(version: int) -> str:
    """A name for the weights of a version: new for every load, so that nothing cached under it can be older."""
    return f"v{version:06d}-{secrets.token_hex(4)}"


def require_whole(folder: Path, kind: WeightsSent) -> None:
    """Raise ModelError unless `folder` holds readable weights of that kind: a failed reload can end a vLLM server.

    Each file's header is read, which tells whether the file is as long as it should be.
    """
    if kind == "adapter":
        require_usable_adapter(folder)
    else:
        _require_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors files to load weights from")
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                empty = not list(weights.keys())
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read as safetensors: {error}") from error
        if empty:
            raise ModelError(f"{file} holds no weights")


def _require_config(folder: Path) -> None:
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable config.json: {error}") from error


class SharedFolder:
    """Copies weights to the folder that the servers share with this machine, if there is one."""

    def __init__(self, config: ServersConfig) -> None:
        """Create the folder, readable by its owner alone, unless it exists."""
        self._here = config.folder
        self._there = Path(config.folder_on_server) if config.folder_on_server else config.folder
        self._copies: list[Path] = []
        if self._here is not None:
            self._here.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, weights: Path, label: str) -> str:
        """The path on the servers of a copy of `weights`, for its owner alone; without a shared folder, of `weights`.

        Raises:
            ModelError: the copy cannot be written.
        """
        if self._here is None or self._there is None:
            return str(weights.resolve())
        copy = self._here / label
        try:
            with atomic_folder(copy, lambda folder: True, mode=0o700) as aside:
                for file in weights.iterdir():
                    if file.is_file():
                        shutil.copy2(file, aside / file.name)
        except OSError as error:
            raise ModelError(f"servers.folder: cannot copy the weights to {copy}: {error}") from error
        self._copies.append(copy)
        return str(self._there / label)

    def drop_old(self) -> None:
        """Remove all copies but the last, once every server that works has read that one."""
        while len(self._copies) > 1:
            shutil.rmtree(self._copies.pop(0), ignore_errors=True)

    def close(self) -> None:
        """Remove all copies."""
        while self._copies:
            shutil.rmtree(self._copies.pop(), ignore_errors=True)
