"""toolkit-rl-debug shows what the filters say about each group, and how many each of them rejects."""

import pytest

from posttrain.base.console import console
from posttrain.dataserver.schemas import Sample
from posttrain.rl.config import RolloutConfig
from posttrain.rl.debug.groups import Group
from posttrain.rl.debug.verdicts import filter_table, judged, told_verdict, verdict_findings
from rl.written_rollouts import a_prompt, a_rollout

FILTERS = RolloutConfig.model_validate(
    {"filters": [{"kind": "truncated", "max_share": 0.5}, {"kind": "reward_spread"}]}
).filters


def a_group(*rewards: float, too_long: bool = False) -> Group:
    prompt = a_prompt(0, is_too_long=too_long)
    sample = Sample(sample_id="0", dataset="a", slot=0, messages=[])
    return Group(3, prompt, sample, tuple(a_rollout(prompt, n, [n], reward) for n, reward in enumerate(rewards)))


def test_each_group_is_judged_and_counted_for_the_first_filter(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [a_group(0, 1), a_group(1, 1), a_group(0, 0), a_group(too_long=True)]
    verdicts = judged(groups, FILTERS)
    assert [told_verdict(verdict) for verdict in verdicts] == [
        "accepted by the filters",
        "rejected by reward_spread: the rewards' standard deviation is 0",
        "rejected by reward_spread: the rewards' standard deviation is 0",
        "accepted by the filters",
    ]
    console.print(filter_table(groups, verdicts, FILTERS))
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["truncated", "0", "of", "3", "0%"] in rows
    assert ["reward_spread", "2", "of", "3", "67%"] in rows
    assert list(verdict_findings(groups, verdicts, 20)) == []


def test_it_stands_out_if_every_group_is_rejected() -> None:
    groups = [a_group(1, 1), a_group(0, 0), a_group(too_long=True)]
    (line,) = verdict_findings(groups, judged(groups, FILTERS), 7)
    assert "all 2 groups (reward_spread 2)" in line
    assert "after 7 such steps" in line


def test_without_groups_nothing_stands_out() -> None:
    assert list(verdict_findings([], [], 20)) == []
