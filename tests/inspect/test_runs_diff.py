"""Where two runs differ, by kind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from posttrain.cli.runs import main
from posttrain.inspect.diff import Comparison, Difference, compare
from posttrain.inspect.folders import read_run
from posttrain.inspect.show import show_comparison
from sft.small_sft import train_sft


def differences(one: Path, other: Path) -> list[Difference]:
    return compare(read_run(one), read_run(other)).differences


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_the_same_command_twice_differs_in_nothing_but_times_and_its_place(sft_run: Path, tmp_path: Path):
    config = sft_run.parent.parent / "sft.yaml"
    train_sft(config, "again", f"run.output_dir={tmp_path}")
    comparison = compare(read_run(sft_run), read_run(tmp_path / "again"))
    assert comparison.differences == []
    assert comparison.is_same
    loss = read_run(sft_run).result["loss"]
    assert comparison.final["loss"] == (loss, loss)
    assert not {"seconds", "tokens_per_second", "peak_memory_gib", "directory"} & comparison.final.keys()


@pytest.fixture(scope="session")
def another_rate(sft_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with another learning rate."""
    folder = tmp_path_factory.mktemp("other")
    train_sft(sft_run.parent.parent / "sft.yaml", "rate", f"run.output_dir={folder}", "training.learning_rate=0.02")
    return folder / "rate"


def test_another_learning_rate_parts_the_losses_after_the_first_step(sft_run: Path, another_rate: Path):
    config, *results = differences(sft_run, another_rate)
    assert config == Difference("config", "training.learning_rate", 0.01, 0.02)
    first = {each.key.partition(",")[0]: each.key.rpartition(" ")[2] for each in results}
    # The rows are the same, and so is the loss of step 1, as no step has changed the weights yet.
    steps = {"loss": "2", "eval_loss": "3", "grad_norm": "2", "learning_rate": "1"}
    assert {key: first.get(key) for key in steps} == steps
    assert not {"order_hash", "tokens"} & first.keys()
    before, after = (read_run(run).steps[1]["loss"] for run in (sft_run, another_rate))
    assert results[0] == Difference("results", "loss, first at step 2", before, after)


def test_what_the_manifests_say_is_told_by_kind(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    digest = read_run(run).manifest["identity"]["datasets"]["a"]

    def change(manifest: dict[str, Any]) -> None:
        manifest["identity"]["datasets"]["a"] = "d" * 32
        manifest["identity"].update(processes=2, compiled_with="a compiler", weights="f" * 32)
        manifest["packages"].update({"torch": "9.9", "posttrain-toolkit": "9.0"})
        manifest.update(
            cpus=99,
            commit="c" * 40,
            source="s" * 32,
            started="2020-01-01T00:00:00+00:00",
            resumed=[{"time": "x", "changed": []}],
            tracker_failures={"wandb": {"lines": 9, "not_sent": 1, "first_error": "gone"}},
        )

    edit(run / "manifest.json", change)
    now = read_run(sft_run).manifest
    weights = now["identity"]["weights"]
    assert differences(sft_run, run) == [
        Difference("data", "datasets.a (a.jsonl)", digest, "d" * 32),
        Difference("data", "weights", weights, "f" * 32),
        Difference("code", "commit", now.get("commit"), "c" * 40),
        Difference("code", "packages.posttrain-toolkit", now["packages"]["posttrain-toolkit"], "9.0"),
        Difference("code", "source", now["source"], "s" * 32),
        Difference("packages", "packages.torch", now["packages"]["torch"], "9.9"),
        Difference("hardware", "cpus", now["cpus"], 99),
        Difference("hardware", "compiled_with", None, "a compiler"),
        Difference("hardware", "processes", 1, 2),
    ]


def test_rows_that_part_are_told_before_the_losses(sft_run: Path, copy_of: Callable[[Path], Path]):
    run = copy_of(sft_run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["step"] >= 4 and "order_hash" in row:
            row.update(loss=0.5, order_hash="0123456789abcdef", seconds=99.0)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fourth = read_run(sft_run).steps[3]
    assert differences(sft_run, run) == [
        Difference("results", "order_hash, first at step 4", fourth["order_hash"], "0123456789abcdef"),
        Difference("results", "loss, first at step 4", fourth["loss"], 0.5),
    ]


def test_a_run_that_ended_earlier_is_another_though_all_its_steps_are_the_same(
    sft_run: Path, copy_of: Callable[[Path], Path]
):
    run = copy_of(sft_run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:4]))
    (run / "result.json").unlink()
    comparison = compare(read_run(sft_run), read_run(run))
    assert comparison.differences == []
    # What is left is an evaluation before the first step and three steps; the second evaluation is cut off.
    assert comparison.final["steps"] == (6, 3)
    assert not comparison.is_same


def test_runs_of_two_kinds_can_be_compared(sft_run: Path, dpo_run: Path):
    found = {each.key: each for each in differences(sft_run, dpo_run) if each.kind == "config"}
    assert found["command"] == Difference("config", "command", "toolkit-sft", "toolkit-dpo")
    assert found["method.type"] == Difference("config", "method.type", None, "dpo")
    assert found["stages[1].mix.b"] == Difference("config", "stages[1].mix.b", 2.0, None)


def test_the_exit_code_is_that_of_diff(sft_run: Path, another_rate: Path, tmp_path: Path):
    same = CliRunner().invoke(main, ["diff", str(sft_run), str(sft_run)])
    assert same.exit_code == 0
    assert same.stdout.startswith("nothing differs except times and where the runs are kept\n")
    other = CliRunner().invoke(main, ["diff", str(sft_run), str(another_rate)])
    assert other.exit_code == 1
    assert ["training.learning_rate", "0.01", "0.02"] in [line.split() for line in other.stdout.splitlines()]
    (tmp_path / "manifest.json").write_text("{")
    for wrong, message in ((tmp_path / "none", "there is no run in"), (tmp_path, "manifest.json is damaged")):
        refused = CliRunner().invoke(main, ["diff", str(sft_run), str(wrong)])
        assert refused.exit_code == 2
        assert message in refused.stderr and refused.stdout == ""


def test_the_comparison_can_be_had_as_json(sft_run: Path, another_rate: Path):
    result = CliRunner().invoke(main, ["diff", "--json", str(sft_run), str(another_rate)])
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert (value["one"], value["other"], value["is_same"]) == (str(sft_run), str(another_rate), False)
    rate = {"kind": "config", "key": "training.learning_rate", "one": 0.01, "other": 0.02}
    assert value["differences"][0] == rate
    assert value["final"]["steps"] == {"one": 6, "other": 6}


def test_floats_are_rounded_for_readers_and_what_would_read_alike_is_told_by_the_difference(
    capsys: pytest.CaptureFixture[str],
):
    final = {"loss": (0.5, 0.5 + 2**-30), "worse": (0.25 + 2**-40, 0.25), "reward": (0.21500000000000002, None)}
    show_comparison(Comparison([], {**final, "steps": (40, 40)}), ("a", "b"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["loss", "0.5", "0.5", "+", "9.3e-10"] in rows
    assert ["worse", "0.25", "0.25", "−", "9.1e-13"] in rows
    assert ["reward", "0.215", "–"] in rows
    assert ["steps", "40", "40"] in rows
