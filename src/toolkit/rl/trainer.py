"""TRL's GRPOTrainer with the toolkit's evaluation and importance correction.

Import this after the backend has been chosen: unsloth rewrites GRPOTrainer when it is imported.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import TrainerState
from trl import GRPOTrainer

from toolkit.core.training.labelled_head import LabelledHead
from toolkit.rl.correction import ImportanceCorrection
from toolkit.rl.logprobs import CompletionLogprobs


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
        head = LabelledHead(self.accelerator.unwrap_model(self.model))
        self._logprobs = CompletionLogprobs(head, self.temperature)
        self._in_loss: dict[str, torch.Tensor] | None = None
        self._step_began = _Moment.now(self.state)

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """As the base class; remembers how an optimizer step began."""
        if self._step % self.args.gradient_accumulation_steps == 0:
            self._step_began = _Moment.now(self.state)
        return super().training_step(*arguments, **keywords)

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

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As the base class, without the copy of the adapter that the KL divergence is measured from.

        It is made anew at each start, and transformers would resume from it in place of the trained adapter.
        """
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            shutil.rmtree(Path(output_dir or self.args.output_dir or ".") / "ref", ignore_errors=True)

    def save_now(self) -> None:
        """Write a checkpoint of the steps done so far, as if the one in progress had not begun."""
        self._step_began.restore(self.state)
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

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """What the base class computes, without the padding, and without the head where no token is learnt."""
        if model is self.ref_model or options.get("compute_aux_loss"):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **options
            )
        rows, inputs = batch_size or len(input_ids), self._in_loss or {}
        # Which tokens are the least certain is a question to all of them.
        taught = taught_rows(inputs, self.beta) if inputs and self.top_entropy_quantile == 1.0 else None
        if taught is None or taught.all():
            return *self._logprobs.compute(model, input_ids, attention_mask, logits_to_keep, rows), None
        some, their_entropies = self._logprobs.compute(
            model, input_ids[taught], attention_mask[taught], logits_to_keep, rows
        )
        mask = attention_mask[:, -logits_to_keep:]
        # Where nothing is taught the ratio of new to old policy is 1, and the entropy that is logged the others' mean.
        logprobs = inputs.get("old_per_token_logps", some.new_zeros(mask.shape)) * mask
        entropies = mask * (their_entropies.sum() / mask[taught].sum().clamp(min=1))
        return logprobs.index_put((taught,), some), entropies.index_put((taught,), their_entropies), None

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._in_loss = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._in_loss = None

    def _trained_logprobs(self, outputs: dict[str, Any]) -> torch.Tensor:
        """log p of the completions' tokens by the model as it is, shape [completions, longest]."""
        if "old_per_token_logps" in outputs:
            return outputs["old_per_token_logps"]
        ids = torch.cat([outputs["prompt_ids"], outputs["completion_ids"]], dim=1)
        mask = torch.cat([outputs["prompt_mask"], outputs["completion_mask"]], dim=1)
        was_training = self.model.training
        self.model.eval()  # the engine has no dropout either
        with torch.no_grad():
            logprobs, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                outputs["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )
        self.model.train(was_training)
        return logprobs


def taught_rows(inputs: dict[str, torch.Tensor], beta: float) -> torch.Tensor | None:
    """Which completions teach anything, shape [completions]; None where all have to be computed.

    A completion whose advantage is 0, as in a group whose rewards are all equal, has loss 0 and gradient 0, unless
    it is also held near the start by a KL divergence of weight `beta`. One is kept where none teaches, so that there
    is something to go backward through.
    """
    if beta:
        return None
    advantages = inputs["advantages"]
    taught = (advantages if advantages.dim() == 1 else advantages.abs().sum(dim=1)) != 0
    taught &= inputs["completion_mask"].any(dim=1)
    if not taught.any():
        taught[0] = True
    return taught


@dataclass(frozen=True)
class _Moment:
    """What a step changes before the weights: torch's random numbers, and the count of tokens."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None
    tokens: int

    @classmethod
    def now(cls, state: TrainerState) -> "_Moment":
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return cls(torch.get_rng_state(), cuda, int(state.num_input_tokens_seen))

    def restore(self, state: TrainerState) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        state.num_input_tokens_seen = self.tokens
