"""The identity of a run: what must be equal for a resumed run to be the same run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from posttrain.base.processes import process_count
from posttrain.config.sections.model import ModelConfig
from posttrain.config.sections.parallel import ParallelConfig
from posttrain.data.preparation import tokenizer_digest
from posttrain.models.location import weights_digest
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import PARALLEL, PROCESSES, read_manifest, require_same_run
from posttrain.train.recipe import GradedTasks

_TRAINING = (
    "seed",
    "rows_per_step",
    "micro_batch_size",
    "micro_batch_tokens",
    "batching",
    "optimizer",
    "lora_plus_ratio",
    "ema",
    "label_smoothing",
    "neftune_alpha",
    "gradient_checkpointing",
    "compile",
)


class RunConfig(Protocol):
    """The config of a run."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def parallel(self) -> ParallelConfig: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def run_identity(
    config: RunConfig, sections: Sequence[str], tokenizer: Any, digests: Mapping[str, str], held_out: str | None
) -> dict[str, Any]:
    """Everything that determines a run bit for bit.

    That is the given sections of its config, the fixed part of its training section, the number of processes, the
    weights it starts from, the tokenizer, and the content of the data sets.

    `digests` are those of the data sets; `held_out` is that of the held-out rows, which counts only if they are a data
    set of their own. The stages are not included: the order hash shows whether they changed before the checkpoint.
    """
    described = config.model_dump(mode="json")
    has_own_rows = described["validation"] is not None and described["validation"]["dataset"] is not None
    return {
        **{key: described[key] for key in sections},
        "training": fixed_training(described["training"]),
        **processes_of(config),
        **known_weights(config.model),
        "tokenizer": tokenizer_digest(tokenizer),
        "datasets": dict(digests),
        "validation.dataset": held_out if has_own_rows else None,
    }


def processes_of(config: RunConfig) -> dict[str, Any]:
    """How many processes train together, and how they share the model if they are several."""
    count = process_count()
    return {PROCESSES: count, PARALLEL: config.parallel.kind if count > 1 else None}


def with_any_processes(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a run that goes on with other processes: the same numbers, but for rounding."""
    return {key: value for key, value in identity.items() if key not in (PROCESSES, PARALLEL)}


def with_tasks(identity: dict[str, Any], tasks: GradedTasks | None) -> dict[str, Any]:
    """The identity of a run that also answers `tasks`: they decide which of its checkpoints is the best."""
    return identity if tasks is None else {**identity, "evaluation": tasks.identity}


def fixed_training(training: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a training section that may not change within a run."""
    return {key: training[key] for key in _TRAINING if key in training}


def known_weights(config: ModelConfig) -> dict[str, str]:
    """The part of an identity for the initial weights; empty until a hub model's weights are on this machine.

    Raises:
        ModelError: there is no such model, or one of its files cannot be read.
    """
    digest = weights_digest(config)
    return {} if digest is None else {"weights": digest}


def require_same_weights(
    run: RunDirectory, identity: dict[str, Any], weights: Mapping[str, str], *, resume: bool
) -> None:
    """Add `weights`, digests that are known only after loading, to the identity of a run.

    Raises:
        ConfigError: they differ from those that the resumed run started with.
    """
    identity.update(weights)
    if resume and run.manifest.is_file():
        require_same_run(read_manifest(run.manifest), identity)


def require_loaded_weights(run: RunDirectory, identity: dict[str, Any], model: ModelConfig, *, resume: bool) -> None:
    """Check the weights after loading the model, which may be what brings a hub model's weights to this machine.

    Raises:
        ConfigError: they differ from those that the resumed run started with.
    """
    if "weights" not in identity:
        require_same_weights(run, identity, known_weights(model), resume=resume)
