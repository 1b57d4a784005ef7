"""Connect the processes that train together, and reduce values across them."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import distributed

from posttrain.base.processes import process_count, process_rank
from posttrain.base.user_code import error_in_words
from posttrain.errors import RunError, ServerError, ToolkitError

T = TypeVar("T")
# A rank waits while another one reads data or waits for servers; torch would give up after half an hour. A dead rank
# shows at once.
_LONGEST_WAIT = timedelta(days=1)


def connect() -> Accelerator:
    """This process's Accelerator, which places models on its device and connects it to the other processes.

    The loop handles precision, accumulation and clipping itself, so the Accelerator is not given them.
    """
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="no",
        gradient_accumulation_steps=1,
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=False),
            InitProcessGroupKwargs(timeout=_LONGEST_WAIT),
        ],
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


def in_turn(batches: Sequence[T], *, in_step: bool) -> Iterator[tuple[T, bool]]:
    """This rank's batches, every n-th one for n ranks, and whether each counts.

    Args:
        in_step: whether all ranks need equally many, as those of a sharded model do, in which every pass is a common
            one: where they do not come out even, some get another rank's batch, which does not count.
    """
    rank, ranks = process_rank(), process_count()
    for first in range(0, len(batches), ranks):
        if first + rank < len(batches):
            yield batches[first + rank], True
        elif in_step:
            yield batches[first], False


class RankExchange:
    """Gathers from all ranks in a thread beside the trainer's, without getting in the way of its exchanges.

    All ranks create theirs together, and make the same calls in the same order, each under a label. A rank that fails
    takes part all the same: its failure is its answer, and the call fails on every rank.
    """

    def __init__(self) -> None:
        self._group = None
        self._is_out_of_step = False
        if is_distributed():
            self._group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)

    def agreed(self, label: str, make: Callable[[], T]) -> T:
        """What `make` returns on this rank, if it went well on all ranks; errors as `everywhere`."""
        kept: list[T] = []
        self.everywhere(label, lambda: kept.append(make()))
        return kept[0]

    def gathered(self, label: str, make: Callable[[], list[T]]) -> list[T]:
        """What `make` returns on each rank, in rank order; every rank gets it all; errors as `everywhere`."""
        return [each for theirs in self.everywhere(label, make) for each in theirs]

    def everywhere(self, label: str, make: Callable[[], T]) -> list[T]:
        """What `make` returns on each rank, in rank order.

        Args:
            label: what is exchanged, the same on all ranks.

        Raises:
            ServerError: `make` failed on another rank; on the rank itself, it is the error that `make` raised.
            RunError: the ranks exchange different things; nothing is exchanged any more from then on.
        """
        if self._group is None:
            return [make()]
        failure = mine = None
        try:
            mine = make()
        except Exception as error:  # noqa: BLE001 - or the other ranks would wait for this one, or get its next answer
            failure = error
        if self._is_out_of_step:  # maybe since an exchange within `make`
            raise failure or RunError(f"the processes are out of step, so they cannot exchange {label}")
        reason = None if failure is None else _in_words(failure)
        told: list[tuple[str, str | None, Any]] = [("", None, None)] * distributed.get_world_size()
        distributed.all_gather_object(told, (label, reason, mine), group=self._group)
        labels = list(dict.fromkeys(each for each, _, _ in told))
        self._is_out_of_step = len(labels) > 1
        if failure is not None:
            raise failure
        for rank, (_, theirs, _) in enumerate(told):
            if theirs is not None:
                raise ServerError(f"process {rank}: {theirs}")
        if self._is_out_of_step:
            raise RunError(f"the processes are out of step: they exchange {' and '.join(labels)}")
        return [theirs for _, _, theirs in told]


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, ToolkitError) else error_in_words(error)
