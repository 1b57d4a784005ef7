"""A dataserver that dies or refuses: no reward is invented, no step is lost, and a resumed run is the same run."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataserver.serving import serving
from posttrain.errors import RunError
from rl.rl_runs import (
    WriteRun,
    folder_of,
    journal,
    lines,
    refusing,
    require_same_runs,
    run,
    said,
    server_pid,
    train_here,
    training_rows,
    wait_for_step,
)
from running import metrics


def test_a_run_does_not_notice_that_its_dataserver_is_killed(
    left_alone: Path, a_run: WriteRun, capfd: pytest.CaptureFixture[str]
) -> None:
    config = a_run()

    def kill() -> None:
        wait_for_step(config, 3)
        os.kill(server_pid(config), signal.SIGKILL)

    with ThreadPoolExecutor() as threads:
        killed = threads.submit(kill)
        train_here(config)
        killed.result()

    assert "was terminated by a signal (Killed); restart 1 of at most 5" in " ".join(capfd.readouterr().err.split())
    require_same_runs(config, left_alone)
    # Rows answered just before the kill may be missing from the journal, but it has no other rows and no duplicates.
    rows = journal(config)
    assert set(rows) <= set(journal(left_alone))
    assert len(rows) == len(set(rows))


def test_a_run_whose_dataserver_stays_away_stops_with_all_it_learnt_and_goes_on_when_it_is_back(
    left_alone: Path, a_run: WriteRun
) -> None:
    data, killed = a_run().with_name("data.yaml"), False

    def kill(path: str, body: dict[str, Any]) -> bool:
        nonlocal killed
        if path == "/grade" and body["iteration"] == 3 and not killed:
            server.end(signal.SIGKILL)
            killed = True
        return False

    with serving(data) as server, refusing(server.url, kill) as url:
        config = a_run(dataserver={"config": None, "url": url, "retry_seconds": 1.0})
        run(config, expect=1)
        assert "error: stopped after step 3, which is saved; --resume continues from it: " in said(config)
        assert "Traceback" not in said(config)
        assert (folder_of(config) / "checkpoint-3" / "optimizer.pt").is_file()
        assert (folder_of(config) / "latest").read_text() == "checkpoint-3"

        with serving(data, port=server.port):
            train_here(config, resume=True)

    require_same_runs(config, left_alone)
    assert journal(config) == journal(left_alone)


def test_a_step_that_breaks_off_is_trained_anew_from_its_start_however_often_that_happens(a_run: WriteRun) -> None:
    changes: dict[str, Any] = {"training": {"max_steps": 4}}
    refused = "/train-0-0/"

    def refuse(path: str, body: dict[str, Any]) -> bool:
        return path == "/grade" and refused in body["request_id"]

    with serving(a_run(**changes).with_name("data.yaml")) as server, refusing(server.url, refuse) as url:
        changes["dataserver"] = {"config": None, "url": url, "retry_seconds": 0.2}
        whole, broken = a_run("whole", **changes), a_run("broken", **changes)
        with pytest.raises(RunError, match="before the first step finished, so there is nothing to save: no valid"):
            train_here(whole)
        assert not list(folder_of(whole).glob("checkpoint-*"))
        refused = "nothing"
        train_here(whole, resume=True)
        refused = "/train-1-1/"
        with pytest.raises(RunError, match="stopped after step 1, which is saved"):
            train_here(broken)
        refused = "/train-3-3/"
        with pytest.raises(RunError, match="stopped after step 3, which is saved"):
            train_here(broken, resume=True)
        assert [path.name for path in sorted(folder_of(broken).glob("checkpoint-*"))][-1] == "checkpoint-3"
        refused = "nothing"
        train_here(broken, resume=True)

    require_same_runs(broken, whole, last=4)


@pytest.mark.parametrize("step", [2, 4])
def test_an_outage_during_an_evaluation_loses_no_step_and_the_evaluation_is_made_up_for(
    a_run: WriteRun, step: int
) -> None:
    changes: dict[str, Any] = {"training": {"max_steps": 4}, "run": {"save_every": 4}}
    refused = f"/eval-{step}/"

    def refuse(path: str, body: dict[str, Any]) -> bool:
        return path == "/grade" and refused in body["request_id"]

    with serving(a_run(**changes).with_name("data.yaml")) as server, refusing(server.url, refuse) as url:
        changes["dataserver"] = {"config": None, "url": url, "retry_seconds": 0.2, "on_grade_failure": "abstain"}
        whole, broken = a_run("whole", **changes), a_run("broken", **changes)
        with pytest.raises(RunError, match=f"stopped after step {step}, which is saved"):
            train_here(broken)
        refused = "nothing"
        train_here(broken, resume=True)
        train_here(whole)

    require_same_runs(broken, whole, last=4)


def test_a_run_may_go_on_without_rewards_for_a_few_steps_in_a_row(
    a_run: WriteRun, caplog: pytest.LogCaptureFixture
) -> None:
    refused = {1, 2, 4, 5, 6}

    def refuse(path: str, body: dict[str, Any]) -> bool:
        return path == "/grade" and "/train-" in body["request_id"] and body["iteration"] in refused

    with serving(a_run().with_name("data.yaml")) as server, refusing(server.url, refuse) as url:
        waiting = {"retry_seconds": 0.2, "on_grade_failure": "abstain", "abstain_steps": 2}
        config = a_run(dataserver={"config": None, "url": url, **waiting}, run={"save_every": 4})
        with pytest.raises(RunError, match="stopped after step 6, which is saved"):
            train_here(config)

    rows = training_rows(metrics(folder_of(config)))
    assert [row["reward"] is not None for row in rows] == [True, False, False, True, False, False]
    for row in rows:
        assert (row["grad_norm"] > 0) == (row["reward"] is not None)
        assert ("graders/says_a" in row) == (row["reward"] is not None)
    assert "step 1 has no rewards and trains nothing (1 of at most 2 in a row)" in caplog.text
    assert "step 5 has no rewards and trains nothing (2 of at most 2 in a row)" in caplog.text
    assert "step 6 has no rewards" not in caplog.text
    assert (folder_of(config) / "checkpoint-6").is_dir()
    ungraded = [line for line in lines(folder_of(config) / "completions.jsonl") if line["step"] == 2]
    assert [(line["status"], line["reward"]) for line in ungraded] == [("not graded", None)] * 4
