"""Importance correction: an engine's probabilities are not quite the training model's, and a ratio makes up for it.

ρ = π(token) / μ(token), with π the training model and μ the engine, per token or as a product over a completion;
truncated at a limit (arXiv:2508.05144 and the practice before it) or left out beyond it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True)
class ImportanceCorrection:
    """One way to correct, with the limit of the ratio."""

    mode: Mode
    limit: float

    def ratio(self, trained: torch.Tensor, outputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The factor for each advantage, and what is worth logging.

        Args:
            trained: log π of each token, shape [completions, longest].
            outputs: `completion_mask` and `sampling_per_token_logps`, both of that shape; and `tool_mask` too, where
                there are tokens that nobody sampled.

        Returns:
            The ratio, of shape [completions, longest], or [completions, 1] for a mode of sequences.
        """
        mask = outputs["completion_mask"] * outputs.get("tool_mask", 1)
        difference = torch.nan_to_num((trained - outputs["sampling_per_token_logps"]) * mask)
        log_ratio = difference.sum(dim=1, keepdim=True) if self.mode.startswith("sequence") else difference
        ratio = torch.exp(log_ratio)
        counted = mask.any(dim=1, keepdim=True) if self.mode.startswith("sequence") else mask
        measured = {
            "sampling/logprob_difference": difference.abs().sum() / mask.sum().clamp(min=1),
            # Where nothing was sampled the ratio is 1, and so not beyond it.
            "sampling/ratio_beyond_limit": (ratio > self.limit).sum() / counted.sum().clamp(min=1),
        }
        if self.mode.endswith("truncate"):
            return ratio.clamp(max=self.limit), measured
        return ratio.masked_fill(ratio > self.limit, 0.0), measured
