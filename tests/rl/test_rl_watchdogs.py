"""Watchdogs of reinforcement learning, on hand-made metrics and in tiny runs."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import RunError
from posttrain.models.backend import LoadedModel
from posttrain.rl.config import RolloutConfig
from posttrain.rl.watchdogs import AllTruncated, EntropyCollapse, EqualRewards, NoAdvantage, PolicyLossSpike
from posttrain.train.watchdogs import Watch, Watchdog
from rl.rl_recipes import WrittenServer, train_written
from rl.rl_runs import WriteRun, training_rows
from running import metrics

# Two groups of four completions, with one better completion each.
SOME_BETTER = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)

SHORT = RolloutConfig(max_new_tokens=8)


def row(step: int = 1, **values: Any) -> dict[str, Any]:
    return {"step": step, "stage": "one", "loss": 0.01, "grad_norm": 1.0, "learning_rate": 1e-4, **values}


def rows(name: str, values: Iterable[Any], **others: Any) -> list[dict[str, Any]]:
    return [row(step, **others, **{name: value}) for step, value in enumerate(values, start=1)]


def warned(watchdog: Watchdog, lines: Iterable[dict[str, Any]]) -> list[int]:
    """The steps at which the watchdog warns."""
    return [each["step"] for each in lines if watchdog.look(each) is not None]


def test_rewards_are_equal_for_a_reason_after_five_steps_in_a_row():
    assert warned(EqualRewards(), rows("zero_variance_share", [1, 1, 1, 1, 0.9, 1, 1, 1, 1, 1, 1])) == [10, 11]


def test_steps_that_generate_nothing_neither_count_nor_break_a_row():
    lines = [row(step, zero_variance_share=1.0) if step % 2 else row(step) for step in range(1, 12)]
    assert warned(EqualRewards(), lines) == [9, 11]
    lines = [row(step, truncated_share=1.0) if step % 2 else row(step) for step in range(1, 8)]
    assert warned(AllTruncated(RolloutConfig(max_new_tokens=64)), lines) == [5, 7]


@pytest.mark.parametrize(
    ("reward", "advice"), [(0.0, "begin with easier prompts"), (1.0, "harder prompts"), (0.4, "rollout.temperature")]
)
def test_what_to_do_about_equal_rewards_depends_on_what_they_are(reward: float, advice: str):
    watchdog = EqualRewards()
    told = [watchdog.look(each) for each in rows("zero_variance_share", [1.0] * 5, reward=reward)]
    assert told[4] is not None and "5 times in a row" in told[4] and advice in told[4]


def test_all_completions_are_cut_three_times_before_it_is_told():
    assert warned(AllTruncated(RolloutConfig(max_new_tokens=64)), rows("truncated_share", [1, 1, 0.99, 1, 1, 1])) == [6]
    told = AllTruncated(RolloutConfig(max_new_tokens={0: 8, 4: 16}))
    assert [bool(told.look(each)) for each in rows("truncated_share", [1.0] * 3)] == [False, False, True]
    again = told.look(row(4, truncated_share=1.0))
    assert again is not None and "cut at 14 tokens 4 times" in again  # step 4 trains iteration 3


def test_a_step_without_any_advantage_is_told_by_its_reason():
    watchdog = NoAdvantage()
    assert watchdog.look(row(trained_share=0.125, zero_variance_share=0.5, reward=0.2)) is None
    equal = watchdog.look(row(trained_share=0.0, zero_variance_share=1.0, reward=0.0, truncated_share=1.0))
    assert equal is not None and "rollout.generations" in equal
    # Rewards that are equal up to rounding error have advantages that are rounding error.
    assert watchdog.look(row(trained_share=1.0, zero_variance_share=1.0, reward=0.3)) == equal
    none = watchdog.look(row(trained_share=0.0, zero_variance_share=0.0, reward=None, abstained=0.75, failed=0.25))
    assert none is not None and "75% abstained, 25% failed" in none
    cut = watchdog.look(row(trained_share=0.0, zero_variance_share=0.5, reward=0.2, truncated_share=1.0))
    assert cut is not None and "objective.mask_truncated_completions" in cut


def test_a_step_in_which_no_group_became_whole_is_no_step_without_advantage():
    # The first steps of a run with segments only begin completions.
    begun = {"trained_share": 0.0, "zero_variance_share": 0.0, "reward": None, "rollouts/whole_groups": 0.0}
    assert NoAdvantage().look(row(**begun)) is None
    assert NoAdvantage().look(row(**{**begun, "rollouts/whole_groups": 1.0})) is not None
    lines = [row(step, zero_variance_share=1.0) if step % 2 else row(step, **begun) for step in range(1, 12)]
    assert warned(EqualRewards(), lines) == [9, 11]


def test_the_entropy_has_collapsed_at_a_tenth_of_what_it_was():
    # The median of the first ten is 0.5; that of the last ten is above 0.05 until six of them are 0.04.
    lines = rows("entropy", [0.4, 0.6] * 5 + [0.3] * 10 + [0.04] * 8, trained_share=0.5)
    assert warned(EntropyCollapse(masks_truncated=False), lines) == [26, 27, 28]
    told = EntropyCollapse(masks_truncated=False)
    last = [told.look(each) for each in lines][-1]
    assert last is not None and "from 0.5 to 0.04 nats" in last and "objective.beta" in last


def test_an_entropy_that_falls_to_a_fifth_is_that_of_a_model_that_learns():
    assert (
        warned(EntropyCollapse(masks_truncated=False), rows("entropy", [0.5] * 10 + [0.1] * 30, trained_share=0.5))
        == []
    )


def test_where_cut_completions_are_left_out_a_step_of_nothing_else_has_no_entropy():
    lines = rows("entropy", [0.5] * 10 + [0.0] * 10, trained_share=0.0, truncated_share=1.0)
    assert warned(EntropyCollapse(masks_truncated=True), lines) == []
    assert warned(EntropyCollapse(masks_truncated=False), lines) == [20]


def test_a_loss_of_ten_times_the_largest_before_is_a_spike():
    uneven = [0.1, -0.2] * 5
    assert warned(PolicyLossSpike(), rows("loss", [*uneven, 1.9], trained_share=0.5)) == []
    assert warned(PolicyLossSpike(), rows("loss", [*uneven, -2.1], trained_share=0.5)) == [11]
    assert warned(PolicyLossSpike(), rows("loss", [*uneven[:9], 50.0], trained_share=0.5)) == []
    # If all completions have the same length, the loss is 0 up to rounding, so any loss would look like a spike.
    assert warned(PolicyLossSpike(), rows("loss", [1e-9] * 10 + [0.9], trained_share=0.5)) == []
    assert warned(PolicyLossSpike(), rows("loss", [1e-9] * 10 + [1.1], trained_share=0.5)) == [11]


@given(st.lists(st.floats(0.2, 1.0), max_size=80))
def test_an_entropy_within_a_factor_of_five_never_collapses(values: list[float]):
    assert warned(EntropyCollapse(masks_truncated=False), rows("entropy", values, trained_share=1.0)) == []


ANY_ROW = st.fixed_dictionaries(
    {
        "loss": st.sampled_from([0.01, -0.02, 5.0]),
        "trained_share": st.sampled_from([0.0, 0.5]),
        "zero_variance_share": st.sampled_from([0.5, 1.0]),
        "truncated_share": st.sampled_from([0.5, 1.0]),
        "entropy": st.sampled_from([0.5, 0.01]),
        "reward": st.sampled_from([0.0, 0.5, None]),
    }
)


@given(st.lists(ANY_ROW, min_size=1, max_size=60), st.data())
def test_a_resumed_run_warns_as_the_run_left_alone(values: list[dict[str, Any]], data: st.DataObject):
    lines = [row(step, **each) for step, each in enumerate(values, start=1)]
    done = data.draw(st.integers(0, len(lines)))

    def watch() -> Watch:
        return Watch(
            [
                NoAdvantage(),
                PolicyLossSpike(),
                EqualRewards(),
                AllTruncated(SHORT),
                EntropyCollapse(masks_truncated=False),
            ]
        )

    alone, resumed = watch(), watch()
    whole = [alone.look(each) for each in lines]
    for each in lines[:done]:
        resumed.look(each)
    assert [resumed.look(each) for each in lines[done:]] == whole[done:]


class GradedByText(WrittenServer):
    """Computes the reward of a completion from its text."""

    def __init__(self, reward: Callable[[str], float]) -> None:
        super().__init__()
        self._reward = reward

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        self.rewards = [self._reward(item.completion) for item in items]
        return super().grade(iteration, label, items)


def trained(
    config: Path,
    server: WrittenServer,
    *overrides: str,
    steps: int,
    change: Callable[[LoadedModel], None] = lambda loaded: None,
) -> dict[str, list[int]]:
    """Train in this process, after `change` has modified the model; returns the steps at which each watchdog warned."""
    run = train_written(config, server, f"training.max_steps={steps}", *overrides, change=change)
    found: dict[str, list[int]] = {}
    for each in training_rows(metrics(run.path)):
        for name in each.get("warnings", []):
            found.setdefault(name, []).append(each["step"])
    return found


def test_an_ordinary_run_warns_of_nothing(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    config = a_run(evaluation=None, rollout={"max_new_tokens": 32})
    assert trained(config, WrittenServer(SOME_BETTER), "training.learning_rate=1e-3", steps=8) == {}
    told = training_rows(metrics(config.parent / "runs" / "rl"))
    # In each group of four, one is better than the mean and three are worse.
    assert [each["trained_share"] for each in told] == [1.0] * 8
    assert "warning" not in capsys.readouterr().err


def test_rewards_that_are_all_equal_teach_nothing(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    config = a_run(evaluation=None, rollout={"max_new_tokens": 32})
    found = trained(config, WrittenServer([0.0] * 8), steps=7)
    assert found["nothing_to_learn"] == [1, 2, 3, 4, 5, 6, 7] and found["equal_rewards"] == [5, 6, 7]
    assert found.keys() == {"nothing_to_learn", "equal_rewards"}
    told = capsys.readouterr().err
    assert told.count("warning at step") == 2
    assert "warning at step 1: all completions of each prompt earned the same" in told
    assert "warning at step 5: the rewards of every prompt were all equal 5 times in a row, and all are 0" in told


def test_half_of_the_groups_teach_half_of_the_completions(a_run: WriteRun):
    config = a_run(evaluation=None, rollout={"max_new_tokens": 32})
    assert trained(config, WrittenServer([*SOME_BETTER[:4], *[1.0] * 4]), steps=2) == {}
    assert [each["trained_share"] for each in training_rows(metrics(config.parent / "runs" / "rl"))] == [0.5, 0.5]


def test_completions_without_any_reward_teach_nothing(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    found = trained(a_run(evaluation=None, rollout={"max_new_tokens": 32}), WrittenServer([None] * 8), steps=2)
    assert found["nothing_to_learn"] == [1, 2]
    assert "no completion has a reward (100% abstained, 0% failed" in capsys.readouterr().err


def test_completions_that_are_all_cut_are_told_after_three_steps(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    # A random model ends its turn at once with a probability of 1 in 380.
    found = trained(a_run(evaluation=None), WrittenServer(SOME_BETTER), "rollout.max_new_tokens=1", steps=4)
    assert found == {"all_truncated": [3, 4]}
    assert (
        "every completion was cut at 1 tokens 3 times in a row: raise rollout.max_new_tokens" in capsys.readouterr().err
    )


def test_an_adapter_of_zeros_has_no_gradient(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    def zero(loaded: LoadedModel) -> None:
        with torch.no_grad():
            for name, parameter in loaded.model.named_parameters():
                if "lora" in name:
                    parameter.zero_()

    config = a_run(evaluation=None, rollout={"max_new_tokens": 32})
    assert trained(config, WrittenServer(SOME_BETTER), steps=3, change=zero) == {"zero_gradient": [1, 2, 3]}
    assert "warning at step 1: the gradient is 0" in capsys.readouterr().err


def test_a_model_that_comes_to_write_one_and_the_same_is_noticed(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    training = {"rows_per_step": 16, "micro_batch_size": 8, "learning_rate": 1e-2}
    config = a_run(evaluation=None, rollout={"generations": 8}, algorithm="bnpo", training=training)
    server = GradedByText(lambda text: text.count("e") / max(1, len(text)))
    found = trained(config, server, "lora=null", steps=32)
    told = training_rows(metrics(config.parent / "runs" / "rl"))
    first = found["entropy_collapse"][0]
    # A random model has an entropy of about ln 384 = 5.95 nats.
    assert first >= 20 and told[0]["entropy"] > 5.9 and told[first - 1]["entropy"] < 0.59
    assert f"warning at step {first}: the entropy has fallen from" in capsys.readouterr().err


def test_a_ratio_that_runs_away_is_a_spike_of_the_loss(a_run: WriteRun, capsys: pytest.CaptureFixture[str]):
    # Each generation serves four steps. During the fourth generation, the weights leap towards the bad completions.
    def leap(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.data += 0.1 * parameter.grad.sign()

    config = a_run(evaluation=None, rollout={"max_new_tokens": 4, "iterations": 4}, run={"save_every": 4})
    rates = ("lora=null", "training.learning_rate=1e-4")
    some_worse = [1 - reward for reward in SOME_BETTER]
    found = trained(config, WrittenServer(some_worse), *rates, steps=14, change=after_backward(26, leap))
    assert found["loss_spike"] == [14]
    assert found.keys() <= {"loss_spike", "all_truncated"}
    assert "some ratio of new to old policy has run away" in capsys.readouterr().err


def after_backward(passes: int, act: Callable[[torch.Tensor], None]) -> Callable[[LoadedModel], None]:
    """A model change that calls `act` on each trained parameter after `passes` backward passes."""

    def change(loaded: LoadedModel) -> None:
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                counted = count(1)
                parameter.register_post_accumulate_grad_hook(
                    lambda each, counted=counted: act(each) if next(counted) == passes else None
                )

    return change


def test_a_gradient_that_is_not_finite_names_its_prompts_and_the_last_checkpoint(a_run: WriteRun):
    # A step is two backward passes.
    def spoil(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= math.nan

    config = a_run(evaluation=None, rollout={"max_new_tokens": 32})
    with pytest.raises(RunError) as stopped:
        trained(config, WrittenServer(SOME_BETTER), steps=4, change=after_backward(5, spoil))
    run, message = config.parent / "runs" / "rl", str(stopped.value)
    assert "grad_norm is nan at step 3, so training stopped" in message
    assert (
        "its prompts: train:2:0, train:2:1; the dataserver's journal has their completions, under iteration 2"
        in message
    )
    assert f"the last checkpoint is {run / 'checkpoint-2'}:" in message
    assert [each["step"] for each in training_rows(metrics(run))] == [1, 2]
    assert not (run / "checkpoint-4").exists()
