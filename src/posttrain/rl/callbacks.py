"""What is written down and shown of each optimizer step."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from posttrain.rl.curriculum import stage_name
from posttrain.rl.prompt_order import prompt_hash_after
from posttrain.rl.rewards import TotalReward
from posttrain.rl.rollout.prompts import Prompt
from posttrain.rl.run_plan import RunPlan
from posttrain.rl.transcript import append_lines, on_one_line, one_group, shown
from posttrain.runs.counters import RunCounters
from posttrain.train.broken_steps import last_checkpoint, require_finite, some_of
from posttrain.train.step_log import StepLog

# Our names for what TRL logs.
_NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_variance_share",
    "entropy": "entropy",
    "kl": "kl",
    "completions/mean_length": "completion_tokens",
    "completions/max_length": "longest_completion",
    "clip_ratio/region_mean": "clipped_share",
    "cispo_clip_ratio": "clipped_share",
}
_PREFIXES = ("graders/", "rewards/", "sampling/")
_OURS = ("abstained", "failed", "too_long_prompts", "truncated_share", "taught_share")
# How often completions are shown: so many times in a run.
_SHOWINGS = 10


class RLMetricsCallback(TrainerCallback):
    """Counts each step, writes it to metrics.jsonl and shows it; keeps and shows a few completions."""

    def __init__(
        self,
        plan: RunPlan,
        log: StepLog,
        counters: RunCounters,
        prompts: Callable[[int], Sequence[Prompt]],
        rewards: TotalReward,
    ) -> None:
        """`prompts` are those of a generation."""
        self._plan = plan
        self._clock = plan.clock
        self._log = log
        self._counters = counters
        self._prompts = prompts
        self._rewards = rewards
        self._began = 0.0
        self._row: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._log.begin(self._counters.step)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._rewards.timer.seconds.clear()
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._began
        spent = {name: round(self._rewards.timer.seconds.get(name, 0.0), 4) for name in ("generate", "grade", "sync")}
        step = state.global_step - 1
        self._row = {
            "step": state.global_step,
            "stage": stage_name(self._plan.meta, step),
            "seconds": {**spent, "learn": round(seconds - sum(spent.values()), 4), "all": round(seconds, 4)},
        }
        self._count(step, state.num_input_tokens_seen, seconds)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs:
            return
        if "loss" in logs:
            step = state.global_step
            require_finite(logs, step, scaled=args.fp16, told=lambda: self._told_of_broken(step))
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            row = {**self._row, **_renamed(logs), "order_hash": self._counters.order_hash}
            self._log.write(row, facts(row))
            self._show_completions(state)
        elif "eval_reward" in logs:
            values = {key: value for key, value in logs.items() if key.startswith("eval_")}
            self._log.write_evaluation(state.global_step, values, f"held-out reward {logs['eval_reward']:.3f}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._log.end()

    def _told_of_broken(self, step: int) -> list[str]:
        """`step` is the number of the broken one, counted from 1."""
        clock, ended = self._clock, step * self._clock.accumulation_steps
        # Those of the step's micro-batches, which may have been made at an earlier one.
        served = range(ended - clock.accumulation_steps, ended)
        generations = sorted({micro_step // clock.micro_steps_per_generation for micro_step in served})
        names = [prompt.sample_id for generation in generations for prompt in self._prompts(generation)]
        made = clock.iteration_of(generations[0])
        return [
            f"its prompts: {some_of(names)}; the dataserver's journal has their completions, under iteration {made}",
            last_checkpoint(self._log.run),
        ]

    def _count(self, step: int, tokens_so_far: int, seconds: float) -> None:
        generations = map(self._clock.generation_of, self._clock.generation_starts(step))
        asked = [prompt.sample_id for generation in generations for prompt in self._prompts(generation)]
        order_hash = prompt_hash_after(self._counters.order_hash, asked)
        tokens = int(tokens_so_far) - self._counters.tokens
        self._counters.count(self._clock.rows_per_step, tokens, 0, seconds, order_hash)

    def _show_completions(self, state: TrainerState) -> None:
        graded = self._rewards.latest
        if not graded or not self._clock.is_aligned(state.global_step - 1):
            return
        group = one_group(graded)
        append_lines(self._log.run.path / "completions.jsonl", state.global_step, group)
        if (state.global_step - 1) % max(1, state.max_steps // _SHOWINGS) == 0:
            lines = [shown(each) for each in sorted(group, key=lambda each: -(each.reward or -1))[:4]]
            self._log.say("\n".join([f"step {state.global_step} asked: {on_one_line(group[0].prompt.text)}", *lines]))


def facts(row: dict[str, Any]) -> str:
    """The few numbers of a step that a person watches."""
    parts = [f"loss {row['loss']:.4f}"]
    if row.get("reward") is not None:
        parts.append(f"reward {row['reward']:.3f}±{row['reward_std'] or 0:.3f}")
        parts.append(f"alike {row['zero_variance_share']:.0%}")
        parts.append(f"{row['completion_tokens']:.0f} tokens")
    if row.get("kl") is not None:
        parts.append(f"kl {row['kl']:.4f}")
    return "  ".join([*parts, f"{row['seconds']['all']:.1f} s"])


def _renamed(logs: dict[str, float]) -> dict[str, float | None]:
    ours = {_NAMES[key]: value for key, value in logs.items() if key in _NAMES}
    rest = {key: value for key, value in logs.items() if key in _OURS or key.startswith(_PREFIXES)}
    # TRL's own name for the one reward function says nothing more than `reward`.
    rest = {key: value for key, value in rest.items() if not key.startswith("rewards/total/")}
    return {key: None if value is None or not math.isfinite(value) else value for key, value in (ours | rest).items()}
