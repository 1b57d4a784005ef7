"""TRL's GRPOTrainer with the toolkit's evaluation and importance correction.

Import this after the backend has been chosen: unsloth rewrites GRPOTrainer when it is imported.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from trl import GRPOTrainer

from toolkit.rl.correction import ImportanceCorrection


class CurriculumGRPOTrainer(GRPOTrainer):
    """Trains on completions that a `Rollouts` makes, and evaluates as the toolkit does.

    Args:
        evaluate_rewards: what measures the held-out rewards at an optimizer step.
        correction: makes up for an engine whose probabilities are not the training model's; None does nothing.
        end_ids: tokens that end a completion, so that it counts as not cut.
    """

    model: Any  # the base class says that it may be None, which it never is here

    def __init__(
        self,
        *,
        evaluate_rewards: Callable[[int], dict[str, float]] | None,
        correction: ImportanceCorrection | None,
        end_ids: frozenset[int],
        **keywords: Any,
    ) -> None:
        super().__init__(**keywords)
        self.eos_token_ids = sorted(end_ids | set(self.eos_token_ids))
        self._evaluate_rewards = evaluate_rewards
        self._correction = correction

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Rewards on held-out prompts, by the toolkit's own loop: any number of prompts, on any number of ranks."""
        assert self._evaluate_rewards is not None
        measured = self._evaluate_rewards(self.state.global_step)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        was_training = self.model.training
        self.model.eval()  # or the base class takes these for the numbers of a training step
        self.log(dict(metrics))
        self.model.train(was_training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def save_now(self) -> None:
        """Write a checkpoint of the steps done so far, as if it were time for one."""
        self._save_checkpoint(self.model, trial=None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """As the base class, with advantages scaled by the importance ratio.

        TRL applies its own correction to its own vLLM only, and multiplies each token's loss by the ratio. That loss
        is linear in the advantage, and the ratio is never negative, so scaling the advantage is the same.
        """
        outputs = super()._generate_and_score_completions(inputs)
        if self._correction is not None:
            ratio, measured = self._correction.ratio(self._trained_logprobs(outputs), outputs)
            outputs["advantages"] = outputs["advantages"].unsqueeze(1) * ratio
            mode = "train" if self.model.training else "eval"
            for name, value in measured.items():
                self._metrics[mode][name].append(float(cast(torch.Tensor, self.accelerator.gather(value)).mean()))
        return outputs

    def _trained_logprobs(self, outputs: dict[str, Any]) -> torch.Tensor:
        """log p of the completions' tokens by the model as it is, shape [completions, longest]."""
        if "old_per_token_logps" in outputs:
            return outputs["old_per_token_logps"]
        ids = torch.cat([outputs["prompt_ids"], outputs["completion_ids"]], dim=1)
        mask = torch.cat([outputs["prompt_mask"], outputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                outputs["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        # Kept, so that the loss compares the policy with what it was when these were computed.
        outputs["old_per_token_logps"] = logprobs
        return logprobs
