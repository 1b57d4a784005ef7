"""Watchdogs of reinforcement learning."""

from collections import deque
from statistics import median

from posttrain.rl.config import RLConfig, RolloutConfig
from posttrain.rl.presets import resolve_objective
from posttrain.rl.rollout.config import WatchConfig
from posttrain.train.watchdogs import OverflowingGradient, Row, Watchdog, ZeroGradient

# In a step of few prompts all rewards can be equal by chance, but hardly in five steps in a row: if half of the steps
# are so, which is bad enough, that happens once in 32 times.
_EQUAL_IN_A_ROW = 5
# All completions of a step are cut by chance only if it has few of them, and not three times in a row.
_CUT_IN_A_ROW = 3
_FAR_IN_A_ROW = 3

# The entropy falls in every run that learns, to a half or a third in our examples. At a tenth there is little left to
# choose from: arXiv:2505.22617 finds that rewards then stop rising.
_ENTROPY_LEFT = 0.1
_ENTROPY_WINDOW = 10

# On-policy the loss is 0 on average for any model; its distance from 0 is noise, which shrinks to rounding error if all
# completions have the same length. A loss above ten times the largest of the steps before, and above 1, comes from a
# ratio of new to old policy that has run away: advantages are about 1 at most, and in a good step the ratio is near 1.
_LOSS_TIMES = 10.0
_LOSS_LEAST = 1.0
_LOSS_WINDOW = 20
_LOSS_FEWEST = 10

NEVER_ENDS = "a model that never ends its turn must learn to end it by SFT first"


def rl_watchdogs(config: RLConfig) -> list[Watchdog]:
    """The watchdogs of a reinforcement-learning run."""
    return [
        NoAdvantage(),
        ZeroGradient(
            _had_advantage,
            "if metrics.jsonl shows sampling/ratio_beyond_limit near 1, raise rollout.importance_limit; otherwise "
            "check that something is trained: lora.target_modules, and that the weights of model.adapter are not all 0",
        ),
        PolicyLossSpike(),
        OverflowingGradient(),
        EqualRewards(),
        AllTruncated(config.rollout),
        FarFromSampler(config.rollout.watch),
        EntropyCollapse(
            masks_truncated=resolve_objective(config.algorithm, config.objective).mask_truncated_completions
        ),
    ]


class NoAdvantage:
    """Warns if no completion of the step is better or worse than the others of its prompt."""

    name = "nothing_to_learn"

    def look(self, row: Row) -> str | None:
        """Check `trained_share`, `zero_variance_share`, `reward` and `truncated_share`, unless no group is whole."""
        if _had_advantage(row) or _made_no_group_whole(row):
            return None
        if "reward" in row and row["reward"] is None:
            return (
                f"no completion has a reward ({row.get('abstained') or 0:.0%} abstained, {row.get('failed') or 0:.0%} "
                "failed, or the dataserver was unreachable), so the step teaches nothing: check the graders and gold "
                "answers; toolkit-rl-debug shows the reasons"
            )
        if row.get("truncated_share") == 1 and row.get("zero_variance_share") != 1:
            return (
                "every completion was cut, and the algorithm leaves those out of the loss, so the step teaches "
                "nothing: raise rollout.max_new_tokens, or set objective.mask_truncated_completions: false"
            )
        return (
            "all completions of each prompt earned the same reward, so every advantage is 0 and the step teaches "
            "nothing: raise rollout.generations or training.rows_per_step, or use prompts that are sometimes solved"
        )


class EqualRewards:
    """Warns if no prompt has completions with different rewards, several steps in a row."""

    name = "equal_rewards"

    def __init__(self) -> None:
        self._in_a_row = 0

    def look(self, row: Row) -> str | None:
        """Check `zero_variance_share` and `reward`; a step that generates nothing has neither."""
        if (share := row.get("zero_variance_share")) is None or _made_no_group_whole(row):
            return None
        self._in_a_row = self._in_a_row + 1 if share == 1 else 0
        if self._in_a_row < _EQUAL_IN_A_ROW:
            return None
        why = why_equal(row.get("reward"))
        return f"the rewards of every prompt were all equal {self._in_a_row} times in a row, and {why}"


class AllTruncated:
    """Warns if every completion is cut at the length limit, several steps in a row."""

    name = "all_truncated"

    def __init__(self, rollout: RolloutConfig) -> None:
        self._rollout = rollout
        self._in_a_row = 0

    def look(self, row: Row) -> str | None:
        """Check `truncated_share`; a step that generates nothing has none."""
        if (share := row.get("truncated_share")) is None:
            return None
        self._in_a_row = self._in_a_row + 1 if share == 1 else 0
        if self._in_a_row < _CUT_IN_A_ROW:
            return None
        limit = self._rollout.at(row["step"] - 1).max_new_tokens  # a row counts the steps that are done
        return (
            f"every completion was cut at {limit} tokens {self._in_a_row} times in a row: raise "
            f"rollout.max_new_tokens; {NEVER_ENDS}"
        )


class FarFromSampler:
    """Warns if the model is far from the probabilities that sampled its completions, several steps in a row."""

    name = "far_from_sampler"

    def __init__(self, limits: WatchConfig) -> None:
        self._limits = limits
        self._in_a_row = 0

    def look(self, row: Row) -> str | None:
        """Check `sampling/effective_share` and `sampling/logprob_difference`, where there are any."""
        share, difference = row.get("sampling/effective_share"), row.get("sampling/logprob_difference")
        if share is None or difference is None:
            return None
        is_far = share < self._limits.effective_share or difference > self._limits.logprob_difference
        self._in_a_row = self._in_a_row + 1 if is_far else 0
        if self._in_a_row < _FAR_IN_A_ROW:
            return None
        return (
            f"for {self._in_a_row} steps the model has been far from the probabilities that sampled: log-probabilities "
            f"differ by {difference:.3g} nats, and of the tokens {share:.0%} count. Lower rollout.staleness, "
            "training.learning_rate, or the max_age of rollout.replay"
        )


class EntropyCollapse:
    """Warns if the entropy has fallen so far that completions hardly differ."""

    name = "entropy_collapse"

    def __init__(self, *, masks_truncated: bool) -> None:
        """`masks_truncated`: whether completions that were cut are left out of the loss, and so of the entropy."""
        self._masks_truncated = masks_truncated
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=_ENTROPY_WINDOW)

    def look(self, row: Row) -> str | None:
        """Check `entropy`, except in steps in which it may come from no completion at all."""
        entropy = row.get("entropy")
        if entropy is None or (self._masks_truncated and row.get("truncated_share") and not _had_advantage(row)):
            return None
        if len(self._first) < _ENTROPY_WINDOW:
            self._first.append(entropy)
            return None
        self._recent.append(entropy)
        before, now = median(self._first), median(self._recent)
        if len(self._recent) < _ENTROPY_WINDOW or now >= _ENTROPY_LEFT * before:
            return None
        return (
            f"the entropy has fallen from {before:.3g} to {now:.3g} nats per token, so completions hardly differ: "
            "go back to an earlier checkpoint and use a lower training.learning_rate, a higher objective.epsilon_high, "
            "an objective.beta above 0 or a higher rollout.temperature; if rewards are high, stop here"
        )


class PolicyLossSpike:
    """Warns if the loss is many times larger than before."""

    name = "loss_spike"

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_LOSS_WINDOW)

    def look(self, row: Row) -> str | None:
        """Check `loss` in steps that have an advantage; in others it is 0."""
        if not _had_advantage(row):
            return None
        largest = max(self._recent) if len(self._recent) >= _LOSS_FEWEST else None
        self._recent.append(abs(row["loss"]))
        if largest is None or abs(row["loss"]) <= max(_LOSS_TIMES * largest, _LOSS_LEAST):
            return None
        return (
            f"the loss is {row['loss']:.4g} but was within ±{largest:.4g} in the previous steps, so some ratio of new "
            "to old policy has run away: lower training.learning_rate or rollout.iterations, or set objective.delta"
        )


def why_equal(reward: float | None) -> str:
    """What equal rewards mean, and what to do; `reward` is their value or mean, if there is one."""
    if reward == 0:
        return "all are 0: the task is too hard or a format is never met, so begin with easier prompts, or with SFT"
    if reward == 1:
        return "all are 1: the task is solved, so stop here, or use harder prompts"
    return (
        "use prompts that are sometimes solved, graders that score more finely, or a higher "
        "rollout.temperature if the completions are alike"
    )


def _made_no_group_whole(row: Row) -> bool:
    """Whether the generation of the step only began or went on with completions (`rollout.segment_tokens`)."""
    return row.get("rollouts/whole_groups") == 0


def _had_advantage(row: Row) -> bool:
    """Whether any completion of the step had an advantage other than 0, ignoring rounding errors of equal rewards."""
    others = ("rollouts/substituted_share", "rollouts/replayed_share", "successes/helped_share")
    is_asked = not any(row.get(name) for name in others)  # otherwise other groups are trained as well
    return row.get("trained_share") != 0 and not (is_asked and row.get("zero_variance_share") == 1)
