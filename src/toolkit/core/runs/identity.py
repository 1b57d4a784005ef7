"""What must be the same for a resumed run to be the same run."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from toolkit.core.preparation import tokenizer_digest
from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.manifest import read_manifest, require_same_run
from toolkit.core.runs.sharding import launched_as

_TRAINING = ("seed", "rows_per_step", "micro_batch_size", "optimizer", "gradient_checkpointing", "compile")


def run_identity(
    config: BaseModel, sections: Sequence[str], tokenizer: Any, digests: Mapping[str, str], held_out: str | None
) -> dict[str, Any]:
    """Everything on which each bit of a run depends: these sections of its config, the part of its training section
    that may not change, how many processes there are, the tokenizer, and the content of the data sets.

    `digests` are those of the data sets, `held_out` is that of the held-out rows, which counts where they are a data
    set of their own. The stages are not in it: whether they changed before the checkpoint is read off the order hash.
    """
    described = config.model_dump(mode="json")
    has_own_rows = described["validation"] is not None and described["validation"]["dataset"] is not None
    return {
        **{key: described[key] for key in sections},
        "training": fixed_training(described["training"]),
        "processes": launched_as(),
        "tokenizer": tokenizer_digest(tokenizer),
        "datasets": dict(digests),
        "validation.dataset": held_out if has_own_rows else None,
    }


def fixed_training(training: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a training section that may not change within a run."""
    return {key: training[key] for key in _TRAINING}


def require_same_weights(
    run: RunDirectory, identity: dict[str, Any], weights: Mapping[str, str], *, resume: bool
) -> None:
    """Add the digests of `weights`, which are known only once they are loaded, to the identity of a run.

    Raises:
        ConfigError: they are not those with which the run began that `resume` goes on with.
    """
    identity.update(weights)
    if resume and run.manifest.is_file():
        require_same_run(read_manifest(run.manifest), identity)
