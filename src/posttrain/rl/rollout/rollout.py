"""A completion as it is trained on: its tokens with all that is known of each, and what it earned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.dataserver.schemas import GradeResult
from posttrain.inference.engine import Completion, StopReason, completion_text
from posttrain.rl.rollout.prompts import Prompt


@dataclass(frozen=True)
class Rollout:
    """One completion of a prompt, and what became of it.

    Attributes:
        sample: its number among the completions of its prompt.
        ids: its tokens, shape [tokens]; none where the prompt is too long.
        mask: which of them the model sampled and can be trained, shape [tokens].
        versions: for each the optimizer steps that the weights had made by which it was sampled, shape [tokens].
        logprobs: log μ of each by the engine at the sampling temperature, in nats, shape [tokens]; None unless asked.
        temperature: it was sampled at.
        text: without the end token.
        was_cut: whether it reached the length limit.
        result: None where it was not graded: its prompt is too long, or the dataserver cannot be reached.
    """

    prompt: Prompt
    sample: int
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32] | None
    temperature: float
    text: str
    was_cut: bool
    result: GradeResult | None = None

    @classmethod
    def of(
        cls,
        prompt: Prompt,
        sample: int,
        completion: Completion | None,
        tokenizer: Any,
        *,
        stop: Sequence[str],
        version: int,
        temperature: float,
    ) -> "Rollout":
        """What an engine said to a prompt; `completion` is None where it was not asked."""
        ids = np.array(() if completion is None else completion.token_ids, dtype=np.int64)
        logprobs = None if completion is None or completion.logprobs is None else completion.logprobs
        return cls(
            prompt=prompt,
            sample=sample,
            ids=ids,
            mask=np.ones(len(ids), dtype=np.bool_),
            versions=np.full(len(ids), version, dtype=np.int32),
            logprobs=None if logprobs is None else np.array(logprobs, dtype=np.float32),
            temperature=temperature,
            text="" if completion is None else completion_text(tokenizer, completion, stop),
            was_cut=completion is not None and completion.stop_reason is StopReason.LENGTH,
        )

    @property
    def tokens(self) -> int:
        """The completion's length."""
        return len(self.ids)

    @property
    def reward(self) -> float | None:
        """None where there is none, which is not 0."""
        return self.result.reward if self.result is not None else None

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON that people read."""
        result = self.result
        return {
            "sample_id": self.prompt.sample_id,
            "prompt": self.prompt.text,
            "completion": self.text,
            "tokens": self.tokens,
            "truncated": self.was_cut,
            "status": result.status if result is not None else "not graded",
            "reward": self.reward,
            "reason": result.reason if result is not None else "",
            "scores": {name: each.score for name, each in result.components.items()} if result is not None else {},
        }
