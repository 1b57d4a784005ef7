"""Which completions are generated together: a function of the requests alone, so that a repeat is exact."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.inference.engine import GenerationRequest


@dataclass(frozen=True)
class GenerationBatch:
    """Prompts that go through the model together; a request with n completions stands there n times.

    `seed` is derived from the seeds of its requests.
    """

    indices: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...]
    seed: int


def plan_batches(requests: Sequence[GenerationRequest], batch_size: int) -> list[GenerationBatch]:
    """Batches of at most `batch_size` completions (more only where one request alone asks for more).

    The longest prompts come first: like lengths need little padding, and what does not fit into memory fails
    at once.
    """
    order = sorted(range(len(requests)), key=lambda index: (-len(requests[index].prompt_ids), index))
    batches: list[list[int]] = []
    filled = batch_size
    for index in order:
        wanted = requests[index].n
        if filled + wanted > batch_size:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += wanted
    return [_batch(requests, indices) for indices in batches if indices]


def _batch(requests: Sequence[GenerationRequest], indices: list[int]) -> GenerationBatch:
    seeds = ",".join(str(requests[index].seed) for index in indices)
    digest = hashlib.blake2b(seeds.encode(), digest_size=7).digest()
    return GenerationBatch(
        indices=tuple(indices),
        prompts=tuple(requests[index].prompt_ids for index in indices for _ in range(requests[index].n)),
        seed=int.from_bytes(digest),
    )
