"""Two ranks have the same servers, which get the weights once and answer each completion once."""

from pathlib import Path

from rl.rl_runs import folder_of, lines, run, said, train_here, training_rows
from rl.rollout.server_runs import serving, write
from running import metrics


def test_two_processes_get_what_one_gets_though_a_server_dies(tiny_model: Path, tmp_path: Path) -> None:
    changes = {"training": {"max_steps": 3, "micro_batch_size": 2}, "evaluation": {"prompts": 5}}
    with serving(tiny_model) as serve:
        one = write(tmp_path / "one", tiny_model, {"urls": [serve().url]}, rollout={"staleness": 1}, **changes)
        train_here(one)
        lasting, failing = serve(), serve()
        failing.faults["dies_after"] = 40
        urls = {"urls": [lasting.url, failing.url]}
        two = write(tmp_path / "two", tiny_model, urls, rollout={"staleness": 1}, **changes)
        run(two, processes=2)
        assert failing.faults["dies_after"] <= 0
        loads = [
            path for path, body in lasting.asked if path == "/collective_rpc" and body["method"] == "reload_weights"
        ]
    assert len(loads) == 4  # versions 0 to 3, the last one for the evaluation at the end
    rows = [training_rows(metrics(folder_of(config))) for config in (one, two)]
    assert [row["order_hash"] for row in rows[1]] == [row["order_hash"] for row in rows[0]]
    assert [row.get("async/age_max", 0.0) for row in rows[1]] == [0.0, 1.0, 1.0]
    # Both generations by the first weights; later ones differ in the last digits of the gradients.
    made = [lines(folder_of(config) / "completions.jsonl") for config in (one, two)]
    assert made[0][:2] == made[1][:2]
    evaluations = [lines(folder_of(config) / "evaluations" / "step-000000.jsonl") for config in (one, two)]
    assert evaluations[0] == evaluations[1]


def test_both_processes_end_when_there_is_no_server_any_more(tiny_model: Path, tmp_path: Path) -> None:
    training = {"max_steps": 3, "micro_batch_size": 2}
    with serving(tiny_model) as serve:
        server = serve()
        server.faults["dies_after"] = 40
        servers = {"urls": [server.url], "retry_seconds": 0.5}
        config = write(tmp_path, tiny_model, servers, training=training, evaluation=None)
        run(config, processes=2, expect=1)
    assert "is saved; --resume continues from it: 0 of 1 servers work, 1 are needed" in said(config)
    assert "is saved; --resume continues from it: process 0: 0 of 1 servers work" in said(config)
