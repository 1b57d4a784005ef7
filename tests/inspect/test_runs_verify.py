"""A run is checked against its config and data, without training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from posttrain.base.locks import process_lock
from posttrain.cli.runs import main
from posttrain.inspect.folders import read_run
from posttrain.inspect.verify import Finding, verify


def findings(run: Path) -> list[Finding]:
    return verify(read_run(run), lambda line: None)


def failures(run: Path) -> list[str]:
    return [each.text for each in findings(run) if each.outcome == "fails"]


def edit(file: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def edit_step(run: Path, step: int, **values: Any) -> None:
    """Change the line of an optimizer step in metrics.jsonl."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["step"] == step and "order_hash" in row:
            row.update(values)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


SAME = "config, data, weights and tokenizer: they match the manifest"
WHOLE = "all files are intact, and its state is from that step"


def test_all_holds_of_a_run_that_nobody_touched(sft_run: Path):
    assert findings(sft_run) == [
        Finding("holds", "metrics.jsonl: 6 steps, each once and in order"),
        Finding("holds", SAME),
        Finding("holds", "order_hash: all 6 steps match config and data"),
        Finding("holds", "tokens: all 6 steps match config and data"),
        Finding("holds", "trained_tokens: all 6 steps match config and data"),
        Finding("holds", f"checkpoint-3: {WHOLE}"),
        Finding("holds", f"checkpoint-6: {WHOLE}"),
    ]


def test_all_holds_of_a_run_of_preferences(dpo_run: Path):
    found = findings(dpo_run)
    assert {each.outcome for each in found} == {"holds"}
    assert Finding("holds", "order_hash: all 3 steps match config and data") in found


def test_all_holds_of_a_run_of_reinforcement_learning_without_a_server(rl_run: Path):
    assert findings(rl_run) == [
        Finding("holds", "metrics.jsonl: 6 steps, each once and in order"),
        Finding("holds", SAME),
        Finding("holds", "order_hash: all 6 steps match config and data"),
        *(Finding("holds", f"checkpoint-{step}: {WHOLE}") for step in (2, 4, 6)),
    ]


def test_a_changed_byte_of_the_weights_is_found(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    weights = run / "checkpoint-3" / "adapter_model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert failures(run) == ["checkpoint-3: adapter_model.safetensors is not what was written (its digest differs)"]


@pytest.mark.parametrize("kind", ["sft_run", "rl_run"])
def test_an_order_hash_that_is_not_the_datas_is_told_with_its_step(
    kind: str, request: pytest.FixtureRequest, copy_of: Callable[[Path], Path]
):
    run = copy_of(request.getfixturevalue(kind))
    true = read_run(run).steps[4]["order_hash"]
    edit_step(run, 5, order_hash="0123456789abcdef")
    assert failures(run) == [
        f"order_hash: at step 5 metrics.jsonl has 0123456789abcdef, but config and data give {true}"
    ]


def test_stages_that_were_edited_give_another_order(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("until_step: 2", "until_step: 1"))
    found = failures(run)
    # Step 1 was drawn as before; both checkpoints are from later steps.
    assert found[0].startswith("order_hash: at step 2 ")
    assert [text.partition(":")[0] for text in found if "config and data give" in text] == [
        *("order_hash", "tokens", "trained_tokens", "checkpoint-3", "checkpoint-6")
    ]


def test_data_that_changed_are_named(sft_run: Path, copy_of: Callable[[Path], Path], tmp_path: Path):
    run = copy_of(sft_run)
    data = run.parent / "a.jsonl"
    original = sft_run.parent.parent / "a.jsonl"
    data.write_text(original.read_text().replace("apples", "pears"))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(original), str(data)))
    [changed, *rest] = failures(run)
    assert changed.startswith("config, data, weights and tokenizer: they differ from the manifest: datasets.a: ")
    assert all(text.startswith(("tokens", "trained_tokens")) for text in rest)


@pytest.mark.parametrize("kind", ["sft_run", "dpo_run", "rl_run"])
def test_a_base_that_has_other_weights_now_is_told(
    kind: str, request: pytest.FixtureRequest, copy_of: Callable[[Path], Path]
):
    run = copy_of(request.getfixturevalue(kind))
    weights = read_run(run).manifest["identity"]["weights"]
    edit(run / "manifest.json", lambda manifest: manifest["identity"].update(weights="a" * 32))
    changed = f"weights: {'a' * 32} → {weights}"
    assert failures(run) == [f"config, data, weights and tokenizer: they differ from the manifest: {changed}"]


def test_what_an_older_version_did_not_write_down_is_not_compared(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    edit(run / "manifest.json", lambda manifest: manifest["identity"].pop("weights"))
    assert Finding("holds", SAME) in findings(run)


def test_data_that_are_gone_are_told_and_the_checkpoints_are_checked_all_the_same(
    sft_run: Path, copy_of: Callable[[Path], Path]
):
    run = copy_of(sft_run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("b.jsonl", "gone.jsonl"))
    [told] = failures(run)
    assert told.startswith("config and data: they can no longer be read: no such file: ")
    assert Finding("holds", f"checkpoint-6: {WHOLE}") in findings(run)


def test_the_files_of_a_checkpoint_are_measured(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    (run / "checkpoint-3" / "adapter_model.safetensors").unlink()
    optimizer = run / "checkpoint-6" / "optimizer.pt"
    size = optimizer.stat().st_size
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    (run / "best").write_text("checkpoint-5")
    assert failures(run) == [
        "checkpoint-3: adapter_model.safetensors is missing",
        f"checkpoint-6: optimizer.pt has {size - 1:,} bytes instead of {size:,}",
        "best: it names checkpoint-5, which does not exist",
    ]


def test_the_state_of_a_checkpoint_is_held_against_its_step(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    [third, sixth] = [read_run(run).steps[step]["order_hash"] for step in (2, 5)]
    edit(run / "checkpoint-3" / "toolkit_state.json", lambda state: state["counters"].update(order_hash=sixth))
    edit(run / "checkpoint-6" / "toolkit_state.json", lambda state: state["counters"].update(tokens=1))
    (run / "checkpoint-6").rename(run / "checkpoint-5")
    total = read_run(run).steps[5]["total_tokens"]
    assert failures(run)[:2] == [
        f"checkpoint-3: its order_hash is {sixth}, but metrics.jsonl has {third}; "
        f"its order_hash is {sixth}, but config and data give {third}",
        "checkpoint-5: its state is from step 6",
    ]
    (run / "checkpoint-5").rename(run / "checkpoint-6")
    assert failures(run)[1:] == [f"checkpoint-6: it counts 1 tokens, but metrics.jsonl has {total}"]
    (run / "checkpoint-6" / "toolkit_state.json").write_text("{")
    assert failures(run)[1:] == ["checkpoint-6: toolkit_state.json is missing or damaged"]


def test_a_step_that_is_missing_is_told(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 4, "stage"' not in line))
    assert failures(run)[0] == "metrics.jsonl: expected step 4, found step 5"


def test_prompts_of_a_server_elsewhere_are_told_as_unknown(rl_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(rl_run)
    config = run / "config.yaml"
    server = rl_run.parent.parent / "data.yaml"
    config.write_text(
        config.read_text().replace(f"config: {server}", "url: http://127.0.0.1:9").replace("url: null", "")
    )
    assert findings(run)[:2] == [
        Finding("holds", "metrics.jsonl: 6 steps, each once and in order"),
        Finding(
            "unknown",
            "row order: the prompts came from the server at http://127.0.0.1:9, whose config is not on this machine",
        ),
    ]
    assert Finding("holds", f"checkpoint-6: {WHOLE}") in findings(run)


def test_prompts_that_depend_on_grades_are_told_as_unknown(rl_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(rl_run)
    config = run / "config.yaml"
    server = rl_run.parent.parent / "data.yaml"
    server.with_name("adaptive.yaml").write_text(server.read_text() + "adaptive: {pools: {}}\n")
    config.write_text(config.read_text().replace(str(server), str(server.with_name("adaptive.yaml"))))
    # The section affects which prompts are drawn, and the run began without it.
    assert [text.partition(" → ")[0].rpartition(": ")[0] for text in failures(run)] == [
        "config, data, weights and tokenizer: they differ from the manifest: dataserver"
    ]
    why = "with adaptive sampling it depends on earlier grades, which only the journal has"
    assert Finding("unknown", f"row order: {why}") in findings(run)


def test_a_run_that_is_being_trained_is_said_to_be(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    with process_lock(run / ".lock"):
        first = findings(run)[0]
    assert first.outcome == "unknown" and first.text.startswith("it is still being trained by process ")


def test_the_exit_code_says_whether_all_holds(sft_run: Path, copy_of: Callable[[Path], Path], tmp_path: Path):
    run = copy_of(sft_run)
    assert CliRunner().invoke(main, ["verify", str(run)]).exit_code == 0
    (run / "checkpoint-3" / "adapter_model.safetensors").unlink()
    spoilt = CliRunner().invoke(main, ["verify", str(run)])
    assert spoilt.exit_code == 1
    assert "fails    checkpoint-3: adapter_model.safetensors is missing\n" in spoilt.stdout
    none = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert none.exit_code == 2
    assert none.stderr == f"error: there is no run in {tmp_path}: it has no manifest.json; give the folder of a run\n"
