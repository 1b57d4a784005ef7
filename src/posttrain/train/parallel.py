"""Connect the processes that train together, and reduce values across them."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import distributed

from posttrain.base.processes import process_rank
from posttrain.errors import ConfigError, ServerError

T = TypeVar("T")
_YES = {"1", "true", "yes", "on", "y", "t"}
_LAUNCHED_WITH = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
# A rank waits while another one waits for servers; torch would give up after half an hour. A dead rank shows at once.
_LONGEST_WAIT = timedelta(days=1)


def require_unsharded(command: str) -> None:
    """Raise ConfigError if `accelerate launch` was told to shard the model or the optimizer across ranks."""
    for variable, kind in _LAUNCHED_WITH.items():
        if os.environ.get(variable, "").lower() in _YES:
            raise ConfigError(
                f"accelerate launch requested {kind}, but {command} does not support sharding across ranks; launch "
                "with torchrun, where each rank has the complete model, and make it small enough with a lora section "
                "and model.quantization"
            )


def connect() -> Accelerator:
    """This process's Accelerator, which places models on its device and connects it to the other processes.

    The loop handles precision, accumulation and clipping itself, so the Accelerator is not given them.
    """
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="no",
        gradient_accumulation_steps=1,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=False)],
    )


def any_rank(is_so: bool) -> bool:
    """Whether `is_so` is true on any rank; all ranks must call it, and all get the same answer."""
    if not is_distributed():
        return is_so
    flag = torch.tensor([float(is_so)], device="cuda" if torch.cuda.is_available() else "cpu")
    distributed.all_reduce(flag)
    return bool(flag.item())


def is_distributed() -> bool:
    """Whether this process is connected to others."""
    return distributed.is_available() and distributed.is_initialized()


def summed(accelerator: Accelerator, values: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' values, on every rank, in the shape of `values`."""
    everywhere = accelerator.reduce(values, reduction="sum")
    assert isinstance(everywhere, torch.Tensor)
    return everywhere


def gathered(accelerator: Accelerator, values: torch.Tensor) -> torch.Tensor:
    """The values of all ranks, in rank order; every rank must have the same number."""
    everywhere = accelerator.gather(values)
    assert isinstance(everywhere, torch.Tensor)
    return everywhere


def from_main_process(value: T) -> T:
    """The main process's value; all ranks call it together."""
    if not is_distributed():
        return value
    shared = [value]
    distributed.broadcast_object_list(shared, src=0)
    return shared[0]


class RankExchange:
    """Gathers from all ranks in a thread beside the trainer's, without getting in the way of its exchanges.

    All ranks create theirs together, and call it in the same order.
    """

    def __init__(self) -> None:
        self._group = None
        if is_distributed():
            self._group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)

    def agreed(self, make: Callable[[], T]) -> T:
        """What `make` returns on this rank, if it went well on all ranks; ServerError as `gathered`."""
        return self.everywhere(make)[process_rank() if self._group is not None else 0]

    def gathered(self, make: Callable[[], list[T]]) -> list[T]:
        """What `make` returns on each rank, in rank order; every rank gets it all.

        Raises:
            ServerError: `make` raised it, on this rank or another one.
        """
        return [each for theirs in self.everywhere(make) for each in theirs]

    def everywhere(self, make: Callable[[], T]) -> list[T]:
        """What `make` returns on each rank, in rank order; ServerError as `gathered`."""
        if self._group is None:
            return [make()]
        failure = mine = None
        try:
            mine = make()
        except ServerError as error:
            failure = error
        everywhere: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everywhere, (failure is None, mine), group=self._group)
        if failure is not None:
            raise failure
        if not all(went_well for went_well, _ in everywhere):
            raise ServerError("another process could not make its share of the completions")
        return [theirs for _, theirs in everywhere]
