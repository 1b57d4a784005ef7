"""Check that the processes of a launch, maybe on several machines, were started alike and see the same folder."""

import os
import platform
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol

from torch import distributed

from posttrain.base.processes import is_main_process, process_count
from posttrain.errors import ConfigError
from posttrain.hub.pushes import Pushes, PushingConfig, pushing
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import run_context
from posttrain.runs.manifest import describe_run, differences
from posttrain.train.parallel.ranks import connect, from_main_process

_MUST_AGREE = ("packages", "source", "python")
# A file that another machine has just written may take a moment to show on a shared file system.
_LONGEST_SECONDS = 10.0
_YES = {"1", "true", "yes", "on", "y", "t"}
_LAUNCHED_WITH = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor or context parallelism",
}


class RunSettings(PushingConfig, Protocol):
    """The config of a run."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def require_own_sharding() -> None:
    """Raise ConfigError if `accelerate launch` was told to share the model over the processes: the config says that."""
    for variable, kind in _LAUNCHED_WITH.items():
        if os.environ.get(variable, "").lower() in _YES:
            raise ConfigError(
                f"accelerate launch was told to use {kind}, but here the config says how processes share a model: "
                "leave that out, or launch with torchrun, and set parallel.kind: fsdp2"
            )


@contextmanager
def launched(
    run: RunDirectory, config: RunSettings, *, resume: bool, overwrite: bool, **options: object
) -> Iterator[Pushes | None]:
    """Own the folder of a run for the block, with processes that were started alike; yields what pushes checkpoints.

    Args:
        options: further ones of the command line.

    Raises:
        ConfigError, SystemExit: as `require_own_sharding`, `run_context`, `pushing` and `_require_same_launch`.
        RunError: as `run_context`.
    """
    require_own_sharding()
    with run_context(run, resume=resume, overwrite=overwrite):
        _require_same_launch(run, config, {"resume": resume, "overwrite": overwrite, **options})
        with pushing(config, run) as pushes:
            yield pushes


def _require_same_launch(run: RunDirectory, config: RunSettings, options: Mapping[str, object]) -> None:
    """Connect the processes of this launch, if it has several, and check that they can train one run together.

    Args:
        options: those of the command line, besides the config.

    Raises:
        ConfigError: on the main process: they differ in config, options or versions, or a process does not see the
            run's folder.
        SystemExit: on the others, which leave the message to the main process.
    """
    if process_count() == 1:
        return
    connect()
    described = describe_run({}, "")
    versions = {key: described[key] for key in _MUST_AGREE}
    require_agreement({"config": config.model_dump(mode="json"), "options": dict(options), **versions})
    _require_one_folder(run)


def require_agreement(mine: Mapping[str, Any]) -> None:
    """Check that all connected processes tell the same; errors as `_require_same_launch`."""
    if process_count() == 1:
        return
    everyone: list[tuple[str, Mapping[str, Any]]] = [("", {})] * process_count()
    distributed.all_gather_object(everyone, (platform.node(), dict(mine)))
    first, expected = everyone[0]
    for rank, (machine, theirs) in enumerate(everyone):
        if changed := differences(expected, theirs):
            _refuse(
                f"process 0 on {first} and process {rank} on {machine} were not started alike, so nothing was started; "
                "the differences:\n  " + "\n  ".join(changed) + "\nevery process needs the same files and versions"
            )


def _require_one_folder(run: RunDirectory) -> None:
    """Check that each process sees a file that the main process writes into the run's folder."""
    # Counts as left behind, should this process be killed now.
    sign = run.path / f".launch-{from_main_process(secrets.token_hex(8))}.tmp"
    if is_main_process():
        sign.touch()
    distributed.barrier()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not (seen := sign.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    everyone: list[tuple[str, bool]] = [("", False)] * process_count()
    distributed.all_gather_object(everyone, (platform.node(), seen))
    if is_main_process():
        sign.unlink()
    for rank, (machine, sees) in enumerate(everyone):
        if not sees:
            _refuse(
                f"process {rank} on {machine} does not see {run.path} of process 0 on {everyone[0][0]}: "
                "run.output_dir must be on a file system that all machines share"
            )


def _refuse(message: str) -> NoReturn:
    if is_main_process():
        raise ConfigError(message)
    with suppress(Exception):
        distributed.barrier()  # until the main process has ended: torchrun ends all once the first has
    raise SystemExit(ConfigError.exit_code)
