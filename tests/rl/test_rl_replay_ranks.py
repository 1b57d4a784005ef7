"""Two processes replay the same groups, although only one of them stores any."""

from pathlib import Path
from typing import Any

import pytest

from rl.replay_runs import AHEAD, RESERVED, require_limits, require_same, write
from rl.rl_runs import folder_of, kill_after, run, training_rows
from running import metrics


@pytest.mark.long
@pytest.mark.parametrize(
    "rollout",
    [
        pytest.param({**RESERVED, "staleness": 1, "threads": 1}, id="reserved"),
        pytest.param(AHEAD, id="rejected"),
    ],
)
def test_two_processes_replay_the_same_groups_and_go_on_after_a_kill(
    tmp_path: Path, tiny_model: Path, left_alone: Path, rollout: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"training": {"micro_batch_size": 1, "max_steps": 5}, "run": {"save_every": 1}}
    whole, killed = (write(tmp_path / name, tiny_model, rollout, **changes) for name in ("whole", "killed"))
    run(whole, processes=2)
    kill_after(killed, 3, processes=2)
    run(killed, "--resume", processes=2)
    require_same(whole, killed)
    rows = training_rows(metrics(folder_of(whole)))
    assert sum(row["rollouts/replayed_share"] for row in rows) > 0
    require_limits(whole, max_age=8, max_uses=rollout["replay"].get("max_uses", 2), staleness=1)
    plain = training_rows(metrics(folder_of(left_alone)))
    assert [row["order_hash"] for row in rows] == [row["order_hash"] for row in plain[:5]]
