"""Substitutes are asked in rounds, and the dataserver is told which groups they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.dataserver.schemas import GradeItem
from posttrain.dataserver.step_reports import GroupReport
from posttrain.rl.rollout.selection import spares
from rl.rl_recipes import WrittenServer, train_written
from rl.rl_runs import write_run

ROUNDS = {
    "filters": [{"kind": "reward_spread"}],
    "rejected": "substitute",
    "attempts": 2,
    "over_sampling": 1.5,
}


class ListeningServer(WrittenServer):
    """Keeps what it is told of the groups of each step."""

    def __init__(self, rewards: Sequence[float]) -> None:
        super().__init__(rewards)
        self.groups: list[GroupReport] = []

    def report_step(self, *told: Any) -> None:
        self.groups += told[2]


def origins(items: Sequence[GradeItem]) -> list[tuple[int | None, int, str]]:
    """Slot, attempt and origin of each group of 4."""
    assert all(item.rollout is not None for item in items)
    return [(item.slot, item.attempt, item.rollout.origin) for item in items[::4] if item.rollout is not None]


def test_the_server_is_told_which_groups_are_substitutes_and_which_are_spares(tmp_path: Path, tiny_model: Path) -> None:
    # Equal rewards: every group is rejected, so each of the two slots has both of its attempts.
    config = write_run(tmp_path, tiny_model, rollout=ROUNDS, training={"max_steps": 1}, evaluation=None)
    server = ListeningServer([0.5] * 12)
    train_written(config, server)

    (spare,) = spares(0, 0, "aa", 1.5)
    other = 1 - spare.slot
    assert [origins(items) for _, _, items in server.graded] == [
        [(0, 0, "fresh"), (1, 0, "fresh"), (spare.slot, 1, "spare")],
        [(other, 1, "substitute"), (spare.slot, 2, "substitute")],
        [(other, 2, "substitute")],
    ]
    told = {(each.slot, each.attempt, each.origin) for each in server.groups}
    assert told == {place for _, _, items in server.graded for place in origins(items)}
