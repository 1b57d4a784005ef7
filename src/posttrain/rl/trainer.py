"""TRL's GRPOTrainer with the toolkit's evaluation and importance correction.

Import this after the backend has been chosen: unsloth rewrites GRPOTrainer when it is imported.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from trl import GRPOTrainer

from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.shared_prompts import SharedPrompts
from posttrain.rl.correction import ImportanceCorrection
from posttrain.rl.logprobs import CompletionLogprobs
from posttrain.rl.moment import Moment
from posttrain.rl.taught import has_advantage, has_dropout, taught_rows


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
        bare = self.accelerator.unwrap_model(self.model)
        prompts = SharedPrompts(LabelledHead(bare), bare)
        self._logprobs = CompletionLogprobs(prompts, self.temperature)
        self._has_dropout = has_dropout(self.model)
        self._in_loss: dict[str, torch.Tensor] | None = None
        self._step_began = Moment.now(self.state)

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """As the base class; remembers how an optimizer step began."""
        if self._step % self.args.gradient_accumulation_steps == 0:
            self._step_began = Moment.now(self.state)
        return super().training_step(*arguments, **keywords)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Rewards on held-out prompts, by the toolkit's own loop: any number of prompts, on any number of ranks."""
        assert self._evaluate_rewards is not None
        self._step_began = Moment.now(self.state)  # the last step is done: an outage here loses nothing of it
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
        if self._correction is not None and not self._is_corrected_in_loss(outputs):
            everyone = torch.ones(len(outputs["advantages"]), dtype=torch.bool, device=outputs["advantages"].device)
            self._correct(outputs, self._trained_logprobs(outputs), everyone)
        return outputs

    def _is_corrected_in_loss(self, outputs: dict[str, Any]) -> bool:
        """Whether the loss's own forward pass gives the probabilities that the completions were sampled with.

        It does where the weights have not changed since, and nothing is dropped that the engine has.
        """
        return "old_per_token_logps" not in outputs and not self._has_dropout

    def _correct(self, outputs: dict[str, Any], trained: torch.Tensor, rows: torch.Tensor) -> None:
        """Scale the advantages of `rows`, a mask of shape [completions]; `trained` is log π, [completions, longest]."""
        assert self._correction is not None
        names = ("completion_mask", "tool_mask", "sampling_per_token_logps")
        some = {name: outputs[name][rows] for name in names if name in outputs}
        ratio, measured = self._correction.ratio(trained[rows], some)
        factors = ratio.new_ones(len(rows), ratio.shape[1]).index_put((rows,), ratio)
        outputs["advantages"] = outputs["advantages"].unsqueeze(1) * factors
        mode = "train" if self.model.training else "eval"
        for name, value in measured.items():
            self._metrics[mode][name].append(float(cast("torch.Tensor", self.accelerator.gather(value)).mean()))

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
        if taught is None:
            taught = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        logprobs, entropies = self._logprobs_of(model, input_ids, attention_mask, logits_to_keep, rows, taught)
        if self._correction is not None and inputs and self._is_corrected_in_loss(inputs):
            self._correct(inputs, logprobs.detach(), taught)
        return logprobs, entropies, None

    def _logprobs_of(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int,
        taught: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log p and entropy of the completions' tokens, [completions, longest], computed where `taught` is true."""
        some, their_entropies = self._logprobs.compute(
            model, input_ids[taught], attention_mask[taught], logits_to_keep, batch_size
        )
        if taught.all():
            return some, their_entropies
        mask = attention_mask[:, -logits_to_keep:]
        # Where nothing is taught the ratio of new to old policy is 1, and the entropy that is logged the others' mean.
        logprobs = (self._in_loss or {}).get("old_per_token_logps", some.new_zeros(mask.shape)) * mask
        entropies = mask * (their_entropies.sum() / mask[taught].sum().clamp(min=1))
        return logprobs.index_put((taught,), some), entropies.index_put((taught,), their_entropies)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of a micro-batch, by TRL's formula; unsloth on CUDA would put one of its own in its place."""
        return self._compute_loss(model, inputs)

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._in_loss = dict(inputs)  # the base class keeps the one that it was given
        taught = cast("torch.Tensor", self.accelerator.gather(has_advantage(inputs).float().mean()))
        self._metrics["train"]["taught_share"].append(float(taught.mean()))
        try:
            return super()._compute_loss(model, self._in_loss)
        finally:
            self._in_loss = None

    def _trained_logprobs(self, outputs: dict[str, Any]) -> torch.Tensor:
        """log p of the completions' tokens by the model as it is, shape [completions, longest]."""
        if "old_per_token_logps" in outputs and not self._has_dropout:
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
