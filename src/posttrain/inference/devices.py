"""An engine on several devices, each with a copy of the model in a process of its own.

The devices take batches from one queue. Which completions make up a batch depends on the requests alone, so it does not
matter which device makes it: the completions are those of one device.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.masks import TokenRow
from posttrain.errors import ConfigError
from posttrain.inference.engine import (
    Completion,
    Engine,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    complete_by,
    plan_batches,
)
from posttrain.inference.process.engine import EngineProcess
from posttrain.inference.process.specs import AnsweringSpec

T = TypeVar("T")

_LONGEST_SECONDS = 86_400.0  # for one batch
_OWN_BATCHING = 256
"""Completions that a device gets at once if its engine does its own batching."""


class DevicesEngine:
    """An Engine whose work is divided among processes, which belong to another object."""

    def __init__(self, processes: Sequence[EngineProcess], batch_size: int) -> None:
        """`batch_size`: completions that a process gets at once."""
        self._processes: tuple[EngineProcess, ...] = tuple(processes)
        self._batch_size = batch_size
        self._free: SimpleQueue[EngineProcess] = SimpleQueue()
        for process in processes:
            self._free.put(process)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions batch by batch, in the order in which the batches end."""
        batches = [batch for batch in plan_batches(requests, self._batch_size) if not done >= set(batch)]

        def make(batch: Sequence[Key], process: EngineProcess) -> list[tuple[Key, Completion]]:
            asked = [(requests[place], sample) for place, sample in batch]
            each_alone = [GenerationRequest(request.prompt_ids, (request.seeds[sample],)) for request, sample in asked]
            made = process.complete(each_alone, sampling)
            return [(key, made[number, 0]) for number, key in enumerate(batch) if key not in done]

        for completions in self._spread(make, batches):
            yield from completions

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests; a batch of them is made whole or not at all."""
        return complete_by(self.generate, requests, sampling, finished)

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        self._require_open()
        return self._processes[0].score(ids)

    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield the number of each row with log p of its trained tokens, in nats, batch by batch."""
        by_length = sorted(range(len(rows)), key=lambda row: (-len(rows[row].ids), row))
        batches = [by_length[start : start + self._batch_size] for start in range(0, len(rows), self._batch_size)]

        def score(batch: list[int], process: EngineProcess) -> list[tuple[int, list[float]]]:
            found = process.token_logprobs([rows[number] for number in batch])
            return list(zip(batch, found, strict=True))

        for found in self._spread(score, batches):
            yield from found

    def close(self) -> None:
        """Answer nothing any more; the processes may go on with another engine."""
        self._processes = ()

    def _require_open(self) -> None:
        if not self._processes:
            raise RuntimeError("the engine is closed")

    def _spread(self, work: Callable[[T, EngineProcess], list], parts: Sequence[T]) -> Iterator[list]:
        """What `work` returns for each part, as they end; each process works on one part at a time."""

        def on_a_free_one(part: T) -> list:
            process = self._free.get()
            try:
                return work(part, process)
            finally:
                self._free.put(process)

        self._require_open()
        with ThreadPoolExecutor(len(self._processes)) as threads:
            futures: list[Future[list]] = [threads.submit(on_a_free_one, part) for part in parts]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for process in self._processes:
                    process.close()  # ends the calls that the threads wait for
                raise


def open_answering(spec: AnsweringSpec, devices: Sequence[str] = ()) -> AbstractContextManager[Engine]:
    """Open the engine that `spec` describes on each of `devices`; it closes at the end of the block.

    Without `devices` it has the first accelerator, or else the CPU, in this process.

    Raises:
        ConfigError, ModelError: as `open_engine`; also if there is no such device.
        ServerError: a process died three times in a row.
    """
    return _on_devices(spec, devices) if devices else spec.open()


def computed_in(model: ModelConfig, devices: Sequence[str] = ()) -> str:
    """The kind of device that `open_answering` would compute on here, and the dtype, such as `bfloat16 on cuda`."""
    import torch  # slow import

    from posttrain.models.backend import compute_dtype, training_device

    device = torch.device(devices[0]) if devices else training_device()
    return f"{compute_dtype(model.dtype, device)} on {device.type}".removeprefix("torch.")


@contextmanager
def _on_devices(spec: AnsweringSpec, devices: Sequence[str]) -> Iterator[Engine]:
    with closing(EngineProcesses(devices)) as processes:
        yield processes.engine(spec)


class EngineProcesses:
    """Processes that answer with one model after another, one on each device.

    Without `devices` there is one, on the first accelerator, or else the CPU.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._devices = devices or (None,)
        self._processes: list[EngineProcess] = []
        self._folders = ExitStack()
        self._scratch = Path()
        self._current: DevicesEngine | None = None
        self._kind: tuple[str, str] | None = None

    def engine(self, spec: AnsweringSpec) -> DevicesEngine:
        """The engine that `spec` describes; the one before is closed. Errors as `open_answering`."""
        if self._current is not None:
            self._current.close()
        kind = (spec.engine, spec.model.backend)
        if kind != self._kind or not self._can_go_on():
            self.close()
            self._make_processes()
        self._kind = kind
        _open_all(self._processes, replace(spec, scratch=self._scratch))
        self._current = DevicesEngine(self._processes, spec.batch_size if spec.engine == "hf" else _OWN_BATCHING)
        return self._current

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
        self._processes.clear()
        self._folders.close()

    def _can_go_on(self) -> bool:
        """Whether there are processes that can open another engine, which saves starting them.

        The memory of an accelerator is sure to be free only when a process has ended.
        """
        if not self._processes or any(process.is_closed for process in self._processes):
            return False
        if all(device == "cpu" for device in self._devices):
            return True
        import torch  # slow import

        return not torch.cuda.is_available()

    def _make_processes(self) -> None:
        _require_devices([device for device in self._devices if device not in (None, "cpu")])
        self._scratch = Path(self._folders.enter_context(tempfile.TemporaryDirectory(prefix="posttrain-devices-")))
        for number, device in enumerate(self._devices):
            self._processes.append(
                EngineProcess(
                    self._scratch / f"{number}.log",
                    seconds=_LONGEST_SECONDS,
                    threads=_threads(device, len(self._devices)),
                    environment=_environment(device),
                )
            )


def _open_all(processes: Sequence[EngineProcess], spec: AnsweringSpec) -> None:
    """Open an engine in all processes at once; if one cannot, all end, and the error is the first one's."""
    with ThreadPoolExecutor(len(processes)) as threads:
        futures = [threads.submit(process.open, spec) for process in processes]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for process in processes:
                process.close()  # ends the calls that the threads wait for
            raise


def _require_devices(devices: Sequence[str]) -> None:
    if not devices:
        return
    import torch  # slow import

    count = torch.cuda.device_count()
    if missing := [device for device in devices if int(device.removeprefix("cuda:")) >= count]:
        there = f"cuda:0 to cuda:{count - 1}" if count else "only cpu"
        raise ConfigError(f"generation.devices: there is no {', '.join(missing)} here, {there}")


def _threads(device: str | None, count: int) -> int | None:
    """The threads of one of `count` processes; None for torch's default."""
    if device != "cpu":
        return None
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, len(os.sched_getaffinity(0)) // count))


def _environment(device: str | None) -> Mapping[str, str]:
    """Lets a process see only `device`: `cpu`, or `cuda:N` for the N-th of those that are visible now."""
    if device is None:
        return {}
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    number = int(device.removeprefix("cuda:"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[number] if visible else str(number)}
