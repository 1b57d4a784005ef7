"""Hand-written rollouts, without a model or a server."""

from collections.abc import Sequence

import numpy as np

from posttrain.dataserver.schemas import Component, GradeResult, Status
from posttrain.rl.rollout.rollout import Prompt, Rollout


def a_prompt(slot: int, ids: Sequence[int] = (5, 6, 7), *, is_too_long: bool = False) -> Prompt:
    """A prompt for a slot."""
    return Prompt(f"train:0:{slot}", "a", slot, tuple(ids), f"prompt {slot}", is_too_long)


def a_rollout(
    prompt: Prompt,
    sample: int,
    ids: Sequence[int],
    reward: float | None = 0.0,
    *,
    status: Status = "ok",
    was_cut: bool = False,
    temperature: float = 1.0,
    logprobs: Sequence[float] | None = None,
    versions: int = 0,
) -> Rollout:
    """A completion of the prompt, graded unless the prompt is too long."""
    score = Component(score=reward, weight=1.0, status=status, ms=0.0)
    result = GradeResult(item_id="0", status=status, reward=reward, reason="", components={"it": score})
    return Rollout(
        prompt=prompt,
        sample=sample,
        ids=np.array(ids, dtype=np.int64),
        mask=np.ones(len(ids), dtype=np.bool_),
        versions=np.full(len(ids), versions, dtype=np.int32),
        logprobs=None if logprobs is None else np.array(logprobs, dtype=np.float32),
        temperature=temperature,
        text=" ".join(map(str, ids)),
        was_cut=was_cut,
        result=None if prompt.is_too_long else result,
    )
