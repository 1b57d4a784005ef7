"""Optimizer states in a checkpoint.

They are one file. If the model is sharded, each process writes its share of the states that are as large as a weight
into a folder beside that file: as safetensors, by torch.distributed.checkpoint, so that any number of processes can
read them.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.distributed import checkpoint as sharded_files
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.tensor import DTensor

from posttrain.base.processes import is_main_process, process_count
from posttrain.errors import ModelError
from posttrain.models.weights.sharding import share

# Their names begin with one of runs/finish.py, so that they are not part of an exported model.
_FILE = "optimizer.pt"
_FOLDER = "optimizer_shares"
_FILE_BYTES = 2**28

States = list[dict[str, Any]]
"""The state dict of each optimizer."""
Place = tuple[int, int]
"""The number of an optimizer, and of a weight in it."""


def save_states(optimizers: Sequence[torch.optim.Optimizer], folder: Path) -> None:
    """Write the states into `folder`; the processes that share a model call it together."""
    states = [_copied(optimizer.state_dict()) for optimizer in optimizers]
    shares: dict[str, torch.Tensor] = {}
    weights = _weights(optimizers)
    for place, values, name in _tensors(states):
        value = values[name]
        if isinstance(value, DTensor):
            assert value.shape == weights[place].shape, name
            shares[_key(place, name)], values[name] = value, _elsewhere(value.dtype)
    if is_main_process():
        torch.save(states[0] if len(states) == 1 else states, folder / _FILE)
    if shares:
        writer = sharded_files.HuggingFaceStorageWriter(str(folder / _FOLDER), _in_files(shares), save_distributed=True)
        with _plain_errors():
            sharded_files.save(shares, storage_writer=writer)


def read_states(optimizers: Sequence[torch.optim.Optimizer], folder: Path) -> States:
    """What `save_states` wrote, by whatever number of processes, as these optimizers need it.

    Raises:
        ModelError: the file holds more than tensors and numbers.
    """
    try:
        read = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # torch reads only tensors and numbers
        raise ModelError(
            f"{folder} is not a checkpoint written by this toolkit: a file in it holds more than tensors and "
            "numbers, and was not read; move it away to resume from an older one, or start a new run"
        ) from error
    states: States = read if isinstance(read, list) else [read]
    shares: dict[str, torch.Tensor] = {}
    weights = _weights(optimizers)
    for place, values, name in _tensors(states):
        weight = weights[place]
        if _is_elsewhere(values[name]):
            values[name] = torch.empty_like(weight, dtype=values[name].dtype, requires_grad=False)
            shares[_key(place, name)] = values[name]
        elif values[name].shape == weight.shape:
            values[name] = share(values[name], weight)
    if shares:
        _read_shares(shares, folder / _FOLDER)
    return states


def _in_files(shares: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The number of the file of each tensor, from 1: a process copies what it writes into a file at a time."""
    numbers, size = dict[str, int](), 0
    for key, each in shares.items():
        numbers[key] = 1 + size // (_FILE_BYTES * process_count())
        size += each.nbytes
    return numbers


def _read_shares(shares: dict[str, torch.Tensor], folder: Path) -> None:
    alone = not any(isinstance(each, DTensor) for each in shares.values())
    with warnings.catch_warnings(), _plain_errors():
        # What torch says where one process reads by itself what several have written.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        reader = sharded_files.HuggingFaceStorageReader(str(folder))
        sharded_files.load(shares, storage_reader=reader, no_dist=alone)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the error of the first process that failed, such as of a full disk, in the place of torch's own."""
    try:
        yield
    except CheckpointException as error:
        raise next(failure for failure, _ in error.failures.values()) from error


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict of which values can be replaced without changing the optimizer's."""
    return {**state, "state": {index: dict(values) for index, values in state["state"].items()}}


def _tensors(states: States) -> Iterator[tuple[Place, dict[str, Any], str]]:
    """Each state that is a tensor: the place of its weight, the dictionary that holds it, and its name."""
    for number, state in enumerate(states):
        for index, values in state["state"].items():
            for name in values:
                if isinstance(values[name], torch.Tensor):
                    yield (number, index), values, name


def _weights(optimizers: Sequence[torch.optim.Optimizer]) -> dict[Place, torch.Tensor]:
    """The weights by their places."""
    return {
        (number, index): weight
        for number, optimizer in enumerate(optimizers)
        for index, weight in enumerate(each for group in optimizer.param_groups for each in group["params"])
    }


def _key(place: Place, name: str) -> str:
    """The name of a state in the folder."""
    return f"{place[0]}.{place[1]}.{name}"


def _elsewhere(dtype: torch.dtype) -> torch.Tensor:
    """What stands in the file for a tensor of the folder."""
    return torch.empty(0, dtype=dtype)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 0
