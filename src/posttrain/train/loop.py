"""The training loop: run a recipe's batches, update the weights, then log, evaluate and save."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from posttrain.base.processes import is_main_process
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import RunError, RunInterrupted
from posttrain.hub.pushes import Pushes
from posttrain.models.kernels.offloaded_activations import activations_on_cpu
from posttrain.runs.checkpoints import latest_checkpoint, rotate
from posttrain.runs.directory import RunDirectory
from posttrain.train.memory import Phase, during
from posttrain.train.optim.router_loss import RouterTerms
from posttrain.train.optim.schedules import learning_rate
from posttrain.train.optim.update import update
from posttrain.train.parallel.ranks import any_rank, gathered, summed
from posttrain.train.recipe import Evaluation, Recipe, StepResult, UnavailableError
from posttrain.train.record.profile import profiled
from posttrain.train.record.step_log import StepLog
from posttrain.train.signals import StopRequest, stop_on_signals
from posttrain.train.state import TrainState, seed_step


@dataclass(frozen=True)
class Loop:
    """Trains a recipe from a state to the end, in the run directory `run`."""

    recipe: Recipe
    state: TrainState
    run: RunDirectory
    log: StepLog
    training: TrainingConfig
    settings: RunConfig
    evaluations: Sequence[Evaluation]
    """The last one decides which checkpoint is the best, and whether training ends early."""
    pushes: Pushes | None = None
    """What sends finished checkpoints to a hub, in the main process."""

    def train(self) -> None:
        """Train to the last step; Ctrl-C or SIGTERM stops earlier, with a checkpoint.

        Raises:
            RunInterrupted: training was stopped early.
            RunError: the loss or gradient is not finite, or the recipe cannot get its batch or evaluation.
        """
        state, recipe = self.state, self.recipe
        first = state.counters.step
        if is_main_process():
            # An earlier process may have been killed before it did this.
            rotate(self.run, self.settings.keep_checkpoints, self._spared)
        with stop_on_signals() as stop, self.log.showing(first):
            recipe.heed(stop)
            try:
                missing = [each for each in self.evaluations if self._is_missing(each, first)]
                if self._evaluate(missing, first):
                    self._save(is_best=True)
                if self._has_converged():  # and was killed before it recorded the end
                    return
                with profiled(self.training.profile, self.run, first) as step_is_done:
                    for step in range(first, recipe.max_steps):
                        self._record(self._step(step))
                        step_is_done()
                        if self._after_step(step + 1, stop):
                            return
            except UnavailableError as error:
                self._save_and_give_up(first, error, stop)

    def _step(self, step: int) -> StepResult:
        """Run optimizer step `step`, counted from 0."""
        state, accelerator = self.state, self.state.accelerator
        began = time.perf_counter()
        seed_step(self.training.seed, step)
        with during(Phase.SCORE, f"in optimizer step {step + 1}"):
            batch = self.recipe.batch(step)
        losses, balance = [], RouterTerms.of(state, map(self.recipe.labels, batch))
        for number, micro_batch in enumerate(batch, start=1):
            # Ranks exchange gradients once, in the last backward pass; where they share the weights, in each, as there
            # is no room for whole gradients.
            exchange = nullcontext() if number == len(batch) else accelerator.no_sync(state.model)
            moved = activations_on_cpu(state.model) if self.training.offload_activations else nullcontext()
            with exchange, during(Phase.STEP, f"in optimizer step {step + 1}"):
                with state.loaded.autocast(), moved:
                    loss = self.recipe.loss(state.model, micro_batch)
                losses.append(loss.detach().float())
                loss = loss + balance.term()
                # The exchange averages over the ranks, but their parts of the loss must be summed.
                accelerator.backward(state.scaler.scale(loss * accelerator.num_processes))
        total = torch.stack(losses)
        rate = learning_rate(self.training, self.recipe.max_steps, step)
        with during(Phase.UPDATE, f"while optimizer step {step + 1} updated the weights"):
            norm = update(state.optimizers, state.scaler, rate, self.training.max_grad_norm)
            state.averages.update(step)
        seconds = time.perf_counter() - began
        loss = float(summed(accelerator, total.sum()))
        result = StepResult(step + 1, loss, norm, rate, seconds, balance.mean())
        self._require_finite(result, total)
        return result

    def _record(self, result: StepResult) -> None:
        row, facts = self.recipe.count(result, self.state.counters)
        if is_main_process():
            self.log.write(row, facts)

    def _after_step(self, step: int, stop: StopRequest) -> bool:
        """Evaluate and save if due after `step` steps; return whether training ends here."""
        due = [each for each in self.evaluations if each.is_due(step, self.recipe.max_steps)]
        is_best, is_last = self._evaluate(due, step), step == self.recipe.max_steps
        ends = is_last or self._has_converged()
        is_stopped = stop.on_any_rank() and not ends and self.recipe.may_stop_after(step)
        if ends or is_stopped or is_best or step % self.settings.save_every == 0:
            self._save(is_best=is_best, is_ending=is_stopped)
        if is_stopped:
            raise self._interrupted(step, stop)
        return ends

    def _interrupted(self, step: int, stop: StopRequest) -> RunInterrupted:
        checkpoint = self.run.path / f"checkpoint-{step}"
        return RunInterrupted(
            f"stopped after step {step}, which is saved in {checkpoint}; --resume continues from it", stop.exit_code
        )

    def _has_converged(self) -> bool:
        """Whether `patience` evaluations in a row brought no improvement, so that training ends."""
        patience = self.evaluations[-1].when.patience if self.evaluations else None
        return patience is not None and self.state.progress.since_best >= patience

    def _is_missing(self, evaluation: Evaluation, step: int) -> bool:
        """Whether to evaluate before the first step of this process: the run may have ended before a due evaluation."""
        is_due = evaluation.is_due(step, self.recipe.max_steps)
        return is_due and not any_rank(self.log.has_evaluation(step, evaluation.measure))

    def _evaluate(self, due: Sequence[Evaluation], step: int) -> bool:
        """Evaluate after `step` steps; return whether it is the best so far; before training it never is."""
        is_best = False
        for each in due:
            evaluated = self.state.averages.exported()
            with during(Phase.SCORE, f"in the evaluation after optimizer step {step}"), evaluated:
                values, facts = each.evaluate(self.state.model, step)
            if is_main_process():
                self.log.write_evaluation(step, {f"eval_{name}": value for name, value in values.items()}, facts)
            if step > 0 and each is self.evaluations[-1]:
                measured = self.state.progress.measured
                is_best = measured(values[each.measure], each.measure, each.when.min_improvement)
        return is_best

    def _save(self, *, is_best: bool = False, is_ending: bool = False) -> None:
        keep = self.settings.keep_checkpoints
        self.state.save(self.run, self.recipe, keep=keep, spared=self._spared, is_best=is_best, is_ending=is_ending)
        if self.pushes is not None:
            self.pushes.add(self.state.counters.step)

    @property
    def _spared(self) -> Collection[int]:
        """Steps whose checkpoints are not removed yet, because they are being pushed."""
        return () if self.pushes is None else self.pushes.spared

    def _save_and_give_up(self, first: int, error: UnavailableError, stop: StopRequest) -> None:
        step, is_stopped = self.state.counters.step, stop.on_any_rank()
        if step == 0 and is_stopped:
            message = "stopped before the first step finished, so nothing was saved; --resume starts from the beginning"
            raise RunInterrupted(message, stop.exit_code) from error
        if step == 0:
            raise RunError(f"stopped before the first step finished, so there is nothing to save: {error}") from error
        if step > first:
            self._save(is_ending=True)
        if is_stopped:
            raise self._interrupted(step, stop) from error
        raise RunError(f"stopped after step {step}, which is saved; --resume continues from it: {error}") from error

    def _require_finite(self, result: StepResult, losses: torch.Tensor) -> None:
        """`losses` are those of this rank's micro-batches, shape [micro-batches]."""

        def details() -> list[str]:
            everywhere = gathered(self.state.accelerator, losses.isfinite().unsqueeze(1))
            by_micro_batch = everywhere.view(-1, len(losses)).T.flatten()
            broken = (~by_micro_batch).nonzero().flatten().tolist()
            return [self.recipe.trained_in(result.step - 1, broken), last_checkpoint(self.run)]

        require_finite(
            result.loss, result.grad_norm, result.step, scaled=self.state.scaler.is_enabled(), details=details
        )


def require_finite(
    loss: float,
    grad_norm: float,
    step: int,
    *,
    scaled: bool = False,
    details: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Stop before a broken step is saved: what is on disk stays the last good state.

    Args:
        scaled: whether the loss is scaled for float16. Its gradients may then overflow until the scale is found; such a
            step is skipped and the scale lowered.
        details: gives further lines of the message. All ranks call it, since all have the same numbers.

    Raises:
        RunError: the loss or the gradient norm is not finite.
    """
    for name, value in [("loss", loss), *([] if scaled else [("grad_norm", grad_norm)])]:
        if not math.isfinite(value):
            raise RunError(
                "\n".join(
                    [
                        f"{name} is {value} at step {step}, so training stopped; earlier checkpoints are unchanged. "
                        "Lower training.learning_rate, or keep training.max_grad_norm above 0"
                        + (", or set model.dtype: bfloat16 or float32" if scaled else ""),
                        *details(),
                    ]
                )
            )


def last_checkpoint(run: RunDirectory) -> str:
    """The checkpoint from which training can continue, as a line of a message."""
    latest = latest_checkpoint(run)
    if latest is None:
        return "no checkpoint was written"
    return (
        f"the last checkpoint is {latest.path}: --resume continues from it, also with a different "
        "training.learning_rate or training.max_grad_norm"
    )
