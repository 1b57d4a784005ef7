"""Where a run hands its weights to an engine."""

from hashlib import blake2b
from pathlib import Path


def shared_weights(run: Path) -> Path:
    """The folder in shared memory of the run in the directory `run`; it must not outlive the run."""
    return Path(f"/dev/shm/posttrain-weights-{blake2b(str(run.absolute()).encode(), digest_size=8).hexdigest()}")
