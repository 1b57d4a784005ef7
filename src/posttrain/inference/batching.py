"""Which completions are generated together: a function of the requests alone, so that a repeat is exact."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.inference.engine import GenerationRequest, Key
from posttrain.inference.seeds import derive_seed


@dataclass(frozen=True)
class GenerationBatch:
    """Completions that go through the model together, and the one seed that they share."""

    keys: tuple[Key, ...]
    seed: int


def plan_batches(requests: Sequence[GenerationRequest], batch_size: int) -> list[GenerationBatch]:
    """Batches of `batch_size` completions; those of one request are neighbours, but may fall into two batches.

    The longest prompts come first: like lengths need little padding, and what does not fit into memory fails
    at once.
    """
    keys = [(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
    keys.sort(key=lambda key: (-len(requests[key[0]].prompt_ids), key))
    batches = [tuple(keys[start : start + batch_size]) for start in range(0, len(keys), batch_size)]
    return [
        GenerationBatch(batch, derive_seed(*(requests[position].seeds[sample] for position, sample in batch)))
        for batch in batches
    ]
