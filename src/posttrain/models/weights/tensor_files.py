"""Read and write a model's safetensors files one tensor at a time.

An input file is reopened for every tensor, because the pages read from a mapped file stay in memory until it is closed.
Output files are written by hand, because the library's writer wants all tensors of a file at once. The format is an
8-byte length, a JSON header with every tensor's dtype, shape and offsets, and then the bytes:
https://huggingface.co/docs/safetensors/index#format
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from posttrain.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPES = FLOATS | {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FILE_BYTES = 5 * 10**9
"""Most bytes of a file that `in_files` makes, unless one tensor has more."""


@dataclass(frozen=True)
class StoredTensor:
    """The location, dtype and shape of a tensor in a file; `dtype` is its name in safetensors, such as BF16."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> torch.Tensor:
        """The tensor, backed by the file until it is copied or freed."""
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor(self.name)

    def read_float32(self) -> torch.Tensor:
        """A float32 copy that may be written to."""
        return self.read().to(torch.float32, copy=True)


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to be written: its name, dtype and shape, and the function that makes it when its turn comes.

    `merged` says whether it is more than a copy of one of the base's.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]
    merged: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def output_tensor(name: str, like: torch.Tensor, make: Callable[[], torch.Tensor]) -> OutputTensor:
    """A tensor to be written with the dtype and shape of `like`."""
    return OutputTensor(name, _NAMES[like.dtype], tuple(like.shape), make)


def in_files(tensors: Iterable[OutputTensor]) -> dict[str, list[OutputTensor]]:
    """The tensors, in order, divided among files with the names that loaders look for."""
    groups: list[list[OutputTensor]] = []
    room = 0
    for tensor in tensors:
        if tensor.nbytes > room or not groups:
            groups.append([])
            room = _FILE_BYTES
        groups[-1].append(tensor)
        room -= tensor.nbytes
    if len(groups) == 1:
        return {SINGLE_FILE: groups[0]}
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": each for number, each in enumerate(groups, start=1)}


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors in one safetensors file, from its header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            return {
                name: StoredTensor(path, name, part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def checkpoint_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the model in `folder`, file by file.

    Raises:
        ModelError: there are no safetensors files, one is missing or broken, or a dtype cannot be merged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _checkpoint_files(folder):
        tensors |= stored_tensors(path)
    for tensor in tensors.values():
        if tensor.dtype not in _DTYPES:
            raise ModelError(
                f"{tensor.name} in {tensor.path} is stored as {tensor.dtype}: quantised weights cannot be merged into; "
                "set model.name to the model before it was quantised"
            )
    return tensors


def write_shard(path: Path, tensors: Iterable[OutputTensor], on_written: Callable[[], None]) -> None:
    """Write one safetensors file, making each tensor only when its turn comes."""
    ordered = in_order(tensors)
    with path.open("xb") as file:
        file.write(_header(ordered))
        for tensor in ordered:
            _write_tensor(file, tensor)
            on_written()


def in_order(tensors: Iterable[OutputTensor]) -> list[OutputTensor]:
    """The tensors of a file in the order in which they are made and written.

    Widest first, as the library does: every tensor then starts at a multiple of its element size.
    """
    return sorted(tensors, key=lambda tensor: -_DTYPES[tensor.dtype].itemsize)


def write_index(folder: Path, shards: Mapping[str, Sequence[OutputTensor]]) -> None:
    """Write the index of which file holds which tensor, unless there is only the one file that loaders look for."""
    if list(shards) == [SINGLE_FILE]:
        return
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensors in shards.values() for tensor in tensors)},
        "weight_map": {tensor.name: file for file, tensors in shards.items() for tensor in tensors},
    }
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _checkpoint_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(weight_map.values()))]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    raise ModelError(
        f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; load the model once with transformers and "
        "call save_pretrained, which writes safetensors"
    )


def _header(tensors: Sequence[OutputTensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor is aligned
    return len(text).to_bytes(8, "little") + text


def _write_tensor(file: BinaryIO, tensor: OutputTensor) -> None:
    values = tensor.make()
    if tuple(values.shape) != tensor.shape or values.dtype != _DTYPES[tensor.dtype]:
        raise ModelError(
            f"{tensor.name} came out as {values.dtype} {tuple(values.shape)} where {tensor.dtype} {tensor.shape} "
            "was expected"
        )
    file.write(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
