"""Metrics and transcript of each generation, and the comparison at the end of a run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.intervals.paired import FEWEST, difference_interval
from posttrain.base.processes import is_main_process
from posttrain.dataserver.schemas import Meta, Origin
from posttrain.rl.client.reporter import ReportedGroup, StepReporter
from posttrain.rl.config import RLConfig
from posttrain.rl.generation import Generation, rewards_of
from posttrain.rl.rollout.choice import Choice, Groups
from posttrain.rl.rollout.collect.segments import NOTHING
from posttrain.rl.rollout.rollout import Rollout, rollout_means
from posttrain.rl.rollout.selection import Place
from posttrain.rl.rollout.store.recording import Recorder
from posttrain.rl.schedule import stage_of
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run
from posttrain.train.evaluate import EVALUATIONS, evaluation_file

# Completions are shown this many times in a run.
_SHOWINGS = 10
_SHOWN_AT_ONCE = 4
_SHOWN_CHARACTERS = 160
_PICTURES = {
    "reward": ("mean reward", {"asked": "reward", "trained": "trained_reward", "held out": "eval_reward"}),
    "length": ("completion length (tokens)", {"mean": "completion_tokens", "held out": "eval_tokens"}),
    "kl": ("KL divergence from the start (nats)", {"training": "kl"}),
    "entropy": ("entropy (nats per token)", {"training": "entropy"}),
    "age": ("age of the weights that sampled (steps)", {"mean": "async/age_mean", "highest": "async/age_max"}),
    "effective_share": ("share of the tokens that count", {"effective": "sampling/effective_share"}),
    "accepted": ("share of the slots with an accepted group", {"accepted": "rollouts/accepted_share"}),
    "replayed": ("share of the slots with a replayed group", {"replayed": "rollouts/replayed_share"}),
    "rejected": ("share of the groups that a filter rejects", {"": "filters/"}),
    "waits": ("waiting (seconds)", {"trainer": "seconds/wait", "engine": "seconds/engine_idle"}),
    "zero_variance": ("share of groups whose rewards are all equal", {"training": "zero_variance_share"}),
}


def generation_metrics(generation: Generation, choice: Choice, *, filtered: bool) -> dict[str, float | None]:
    """A generation's numbers for metrics.jsonl; None for those that too few rewards leave undefined.

    They are of the completions that the curriculum asked, whatever was trained in their place; with segments, of those
    whose groups became whole.

    Args:
        filtered: whether groups are chosen, by filters or from a store: then numbers of the choice are added.
    """
    rollouts = choice.asked
    trained = [
        is_so for each, is_so in zip(generation.rollouts, generation.trained, strict=True) if each is not NOTHING
    ]
    rewards = rewards_of(rollouts, generation.rewards.shape[1])
    there = rewards[~rewards.isnan()]
    made = [each for each in rollouts if each.tokens]
    return {
        "reward": float(there.mean()) if len(there) else None,
        "reward_std": float(there.std()) if len(there) > 1 else None,
        "zero_variance_share": zero_variance_share(rewards),
        "completion_tokens": fmean(each.tokens for each in made) if made else 0.0,
        "longest_completion": float(max((each.tokens for each in made), default=0)),
        "trained_share": fmean(trained) if trained else 0.0,
        **rollout_means(rollouts),
        **({**choice.metrics(), "trained_reward": _mean(generation.rewards)} if filtered else {}),
    }


def _mean(rewards: torch.Tensor) -> float | None:
    there = rewards[~rewards.isnan()]
    return float(there.mean()) if len(there) else None


def _reported_numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """A step's numbers, from its line of metrics.jsonl, for the dataserver's page."""
    seconds = {f"seconds/{name}": value for name, value in row["seconds"].items()}
    names = {"rollouts/replayed_share": 0.0, **row}
    return {**{name: value for name, value in names.items() if isinstance(value, int | float)}, **seconds}


def _reported_groups(choice: Choice, step: int) -> list[ReportedGroup]:
    """The groups that were asked for or replayed by optimizer step `step`, from 0, for the dataserver's page.

    The reward of a group with a remembered solution is that of its own completions.
    """
    helped = {choice.selection.trained[slot] or Place(0, slot) for slot in choice.helped}
    trained = {*choice.selection.trained, *helped}
    asked = [
        _reported_group(
            group,
            step,
            verdict="" if (why := choice.verdicts[place]) is None else f"{why.name}: {why.reason}",
            trained=place in trained,
            origin="cached" if place in helped else group[0].prompt.origin,
        )
        for place, group in sorted(choice.groups.items())
    ]
    replayed = [
        _reported_group(each.rollouts, step, verdict="", trained=True, origin="replayed")
        for each in choice.replayed.values()
    ]
    return [*asked, *replayed]


def _reported_group(
    group: Sequence[Rollout], step: int, *, verdict: str, trained: bool, origin: Origin
) -> ReportedGroup:
    prompt = group[0].prompt
    return ReportedGroup(
        iteration=prompt.iteration,
        slot=prompt.slot,
        attempt=prompt.attempt,
        sample_id=prompt.sample_id,
        dataset=prompt.dataset,
        verdict=verdict,
        trained=trained,
        origin=origin,
        mean_reward=_mean(rewards_of(group, len(group))),
        age=max((step - int(each.versions.min()) for each in group if each.tokens), default=0),
    )


def carried(groups: Groups) -> dict[str, float]:
    """With segments: how many groups a generation made whole, and what share of them an earlier one began."""
    older = sum(group[0].prompt.origin == "carried" for group in groups.values())
    return {"rollouts/whole_groups": float(len(groups)), "rollouts/carried_share": older / max(len(groups), 1)}


def ages(rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
    """How many optimizer steps older than the model in `step` the weights are that sampled: over tokens, mean and most.

    Nothing if no token is older.
    """
    found = np.concatenate([step - each.versions for each in rollouts])
    if not found.size or found.max() == 0:
        return {}
    return {"async/age_mean": float(found.mean()), "async/age_max": float(found.max())}


def zero_variance_share(rewards: torch.Tensor) -> float:
    """Share of prompts whose rewards are all equal, among the prompts with two or more rewards.

    `rewards`: shape [groups, G], NaN for a missing reward.
    """
    highest = rewards.nan_to_num(nan=-math.inf).amax(dim=1)
    lowest = rewards.nan_to_num(nan=math.inf).amin(dim=1)
    comparable = (~rewards.isnan()).sum(dim=1) > 1
    if not comparable.any():
        return 0.0
    return float(torch.isclose(highest, lowest, atol=1e-8)[comparable].double().mean())


def step_facts(row: Mapping[str, Any], *, is_apart: bool) -> str:
    """A step's main numbers in one line; `is_apart`: whether the engine runs beside the trainer."""
    parts = [f"loss {row['loss']:.4f}"]
    if row.get("reward") is not None:
        parts.append(f"reward {row['reward']:.3f}±{row['reward_std'] or 0:.3f}")
        parts.append(f"alike {row['zero_variance_share']:.0%}")
        parts.append(f"{row['completion_tokens']:.0f} tokens")
    if "rollouts/accepted_share" in row:
        parts.append(f"accepted {row['rollouts/accepted_share']:.0%}")
        shares = {name.removeprefix("filters/"): share for name, share in row.items() if name.startswith("filters/")}
        parts += [f"rejected {name} {share * row['rollouts/groups_asked']:.0f}" for name, share in shares.items()]
    if row.get("rollouts/replayed_share"):
        parts.append(f"replayed {row['rollouts/replayed_share']:.0%} (age {row['replay/age']:.1f})")
    if row.get("successes/helped_share"):
        parts.append(f"helped {row['successes/helped_share']:.0%}")
    if row.get("kl") is not None:
        parts.append(f"kl {row['kl']:.4f}")
    if "async/age_mean" in row:
        parts.append(f"age {row['async/age_mean']:.1f}")
    seconds = row["seconds"]
    parts.append(f"{seconds['all']:.1f} s")
    if is_apart:
        parts[-1] += f" (waited {seconds['wait']:.1f}, engine {seconds['engine_idle']:.1f})"
    return "  ".join(parts)


class Transcript:
    """Saves and shows some of a run's completions, and reports its steps to the dataserver."""

    def __init__(
        self,
        file: Path,
        meta: Meta,
        max_steps: int,
        reporter: StepReporter | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`reporter`, `recorder`: None on all ranks but the first."""
        self._file, self._meta, self._reporter, self._recorder = file, meta, reporter, recorder
        self._every = max(1, max_steps // _SHOWINGS)

    def stage_of(self, iteration: int) -> str:
        """The dataserver's curriculum stage for an iteration."""
        return stage_of(self._meta, iteration).name

    def add(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Save the completions of the first prompt of a step (counted from 1), and now and then show some of them."""
        if not is_main_process() or not rollouts:
            return
        asked = rollouts[0].prompt
        group = [each for each in rollouts if each.prompt.sample_id == asked.sample_id]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8", errors="replace") as file:
            for each in group:
                file.write(json.dumps({"step": step, **each.as_dict()}, ensure_ascii=False) + "\n")
        if (step - 1) % self._every == 0:
            best_first = sorted(group, key=lambda each: -(each.reward or -1))
            lines = [_shown(each) for each in best_first[:_SHOWN_AT_ONCE]]
            console.print("\n".join([f"step {step} prompt: {_on_one_line(asked.text)}", *lines]))

    def record(self, generation: int, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Keep all of a generation, if the config asks for it (`rollout.record`)."""
        if self._recorder is not None:
            self._recorder.add(generation, iteration, rollouts)

    def report(self, row: Mapping[str, Any], choice: Choice | None) -> None:
        """Report a step to the dataserver's page.

        Args:
            row: its line of metrics.jsonl.
            choice: its groups, if a generation was made for it.
        """
        if self._reporter is not None:
            groups = [] if choice is None else _reported_groups(choice, row["step"] - 1)
            self._reporter.report(row["step"], _reported_numbers(row), groups)


def _shown(graded: Rollout) -> str:
    reward = "none" if graded.reward is None else f"{graded.reward:.2f}"
    return f"  {reward:>5}  {_on_one_line(graded.text)}"


def _on_one_line(text: str) -> str:
    """The start of a text, safe to print: model output may contain control characters."""
    line = "".join(letter if letter.isprintable() else "␣" for letter in text.replace("\n", " ⏎ "))
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 1] + "…"


def finish(run: RunDirectory, config: RLConfig, max_steps: int) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, print the table, and write and return `result.json`."""
    from posttrain.runs.plots import Picture  # heavy: matplotlib

    pictures = {name: Picture(*picture) for name, picture in _PICTURES.items()}
    result = finish_run(run, config.run.export, max_steps, pictures=pictures, results=partial(reward_results, run))
    if result["held_out"]:
        console.print(change_table(result["held_out"]), soft_wrap=False)
    console.print(
        f"{result['steps']} steps, {result['completions']:,} completions, {result['tokens']:,} tokens in "
        f"{result['seconds']:.0f} s, peak memory {result['peak_memory_gib']:.1f} GiB\n"
        f"{result['exported']} is exported to {run.path}; plots are in its folder plots, completions in "
        "completions.jsonl"
    )
    return result


def reward_results(run: RunDirectory, rows: list[dict[str, Any]], counters: Mapping[str, Any]) -> dict[str, Any]:
    """Number of completions, last reward, and under `held_out` the change from the first to the last evaluation."""
    return {
        "completions": counters["rows"],
        "reward": next((row["reward"] for row in reversed(rows) if row.get("reward") is not None), None),
        "held_out": {name: vars(change) for name, change in reward_changes(run, rows).items()},
    }


@dataclass(frozen=True)
class Difference:
    """A mean difference between two evaluations of the same prompts, with its 95 % interval from `low` to `high`."""

    before: float
    after: float
    mean: float
    low: float
    high: float
    prompts: int


def reward_changes(run: RunDirectory, rows: list[dict[str, Any]]) -> dict[str, Difference]:
    """Change of reward and of each grader's score from first to last evaluation; empty with fewer than two."""
    evaluated = [row for row in rows if "eval_reward" in row]
    folder = run.path / EVALUATIONS
    files = [file for row in evaluated if (file := evaluation_file(folder, row["step"])).is_file()]
    if len(files) < 2:
        return {}
    graders = [key.removeprefix("eval_graders/") for key in evaluated[0] if key.startswith("eval_graders/")]
    compared = {name: paired_difference(files[0], files[-1], name) for name in ["reward", *graders]}
    return {name: difference for name, difference in compared.items() if difference is not None}


def change_table(changes: dict[str, dict[str, float]]) -> Table:
    """Table of the values before and after, with the confidence interval of each difference."""
    prompts = next(iter(changes.values()))["prompts"]
    title = f"{prompts} held-out prompts, first evaluation against last"
    table = new_table(title, "", "before", "after", "difference, 95 % interval")
    if prompts < FEWEST:
        table.caption = f"{prompts} prompts are too few to judge by: use {FEWEST} or more (evaluation.prompts)"
        table.caption_justify = "left"
    for name, change in changes.items():
        difference = f"{change['mean']:+.3f}  ({change['low']:+.3f} to {change['high']:+.3f})"
        table.add_row(name, f"{change['before']:.3f}", f"{change['after']:.3f}", difference)
    return table


def paired_difference(before: Path, after: Path, key: str = "reward") -> Difference | None:
    """Rise of the mean reward (or of grader `key`'s mean score); None if no prompt was graded in both evaluations.

    The interval is computed from per-prompt differences, so that hard and easy prompts in one set do not widen it.
    """
    one, other = _by_prompt(before, key), _by_prompt(after, key)
    common = [name for name in one if name in other]
    if not common:
        return None
    rises = [other[name] - one[name] for name in common]
    low, high, _ = difference_interval(rises)
    return Difference(
        before=fmean(one[name] for name in common),
        after=fmean(other[name] for name in common),
        mean=fmean(rises),
        low=low,
        high=high,
        prompts=len(common),
    )


def _by_prompt(path: Path, key: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        row = json.loads(line)
        value = row["reward"] if key == "reward" else row["scores"].get(key)
        if value is not None:
            values.setdefault(row["sample_id"], []).append(value)
    return {name: fmean(found) for name, found in values.items()}
