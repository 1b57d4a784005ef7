"""What must be the same for a resumed run to be the same run."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from toolkit.core.preparation import tokenizer_digest
from toolkit.core.runs.processes import process_count

_TRAINING = ("seed", "rows_per_step", "micro_batch_size", "optimizer", "gradient_checkpointing")


def run_identity(
    config: BaseModel, sections: Sequence[str], tokenizer: Any, digests: Mapping[str, str]
) -> dict[str, Any]:
    """Everything on which each bit of a run depends: these sections of its config, the part of its training section
    that may not change, how many processes there are, the tokenizer, and the content of the data sets.

    The stages are not in it: whether they changed before the checkpoint is read off the order hash.
    """
    described = config.model_dump(mode="json")
    return {
        **{key: described[key] for key in sections},
        "training": {key: described["training"][key] for key in _TRAINING},
        "processes": process_count(),
        "tokenizer": tokenizer_digest(tokenizer),
        "datasets": dict(digests),
    }
