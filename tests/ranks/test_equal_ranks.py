"""Two processes train to the same numbers as one, in cases the other suites leave out."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from evaluate.test_in_training import write as write_graded
from ranks.rank_runs import alone, folder_of, newest_checkpoint, run, steps_of, write_sft
from rl.rl_runs import write_run as write_rl
from running import metrics

pytestmark = pytest.mark.long

# Full precision; the tests also turn off dropout, whose draws differ by rank.
MODEL = {"dtype": "float32"}


def require_close(one: list[dict[str, Any]], two: list[dict[str, Any]], **within: float) -> None:
    """Assert that the lines of two metrics.jsonl agree up to rounding, ignoring times and padding: a single process
    packs the rows of a step more tightly."""
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for alone_, together in zip(one, two, strict=True):
        for row in (alone_, together):
            for name in ("padding_share", "eval_seconds"):
                row.pop(name, None)
        words = [{k: v for k, v in row.items() if isinstance(v, str | list)} for row in (alone_, together)]
        assert words[1] == words[0]
        numbers = [{k: v for k, v in row.items() if not isinstance(v, str | list)} for row in (alone_, together)]
        assert numbers[1] == pytest.approx(numbers[0], **within)


def test_all_weights_and_held_out_rows_of_sft(tmp_path: Path, tiny_model: Path) -> None:
    sections: dict[str, Any] = {
        "model": {"name": str(tiny_model), **MODEL},
        "lora": None,
        "stages": [{"name": "one", "until_step": 6, "mix": {"a": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 1, "learning_rate": 1e-3, "optimizer": "sgd"},
        "validation": {"dataset": {"path": "rows.jsonl"}, "every": 2},
    }
    one, two = (write_sft(tmp_path, tiny_model, name, **sections) for name in ("one", "two"))
    alone("toolkit-sft", one)
    run("toolkit-sft", two)
    require_close(metrics(folder_of(one)), metrics(folder_of(two)), rel=1e-4, abs=1e-5)
    weights, others = (load_file(folder_of(config) / "model.safetensors") for config in (one, two))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert_close(others[name], weight, atol=1e-5, rtol=1e-4)


def test_graded_answers_during_sft(tmp_path: Path, tiny_model: Path) -> None:
    sections: dict[str, Any] = {
        "lora": {"r": 4},
        "training": {"rows_per_step": 4, "micro_batch_size": 1, "learning_rate": 1e-3, "optimizer": "sgd"},
        "evaluation": {"tasks": "eval.yaml", "only": ["apples"], "every": 3},
    }
    configs = []
    for name, trained in (("one", alone), ("two", run)):
        (tmp_path / name).mkdir()
        configs.append(write_graded(tmp_path / name, tiny_model, "sft", **sections))
        trained("toolkit-sft", configs[-1])
    require_close(*(metrics(folder_of(config)) for config in configs), rel=1e-4, abs=1e-5)
    one, two = (sorted((folder_of(config) / "evaluations").iterdir()) for config in configs)
    assert [file.name for file in two] == [file.name for file in one] and len(one) == 3
    assert [file.read_text() for file in two] == [file.read_text() for file in one]


def test_completions_rewards_and_losses_of_grpo(tmp_path: Path, tiny_model: Path) -> None:
    # Each completion has random numbers of its own, so they do not depend on the number of processes.
    sections: dict[str, Any] = {
        "model": MODEL,
        "lora": {"dropout": 0.0},
        "training": {"optimizer": "sgd", "max_steps": 4},
    }
    one, two = (write_rl(tmp_path / name, tiny_model, name=name, **sections) for name in ("one", "two"))
    alone("toolkit-rl-train", one)
    run("toolkit-rl-train", two)
    assert _completed(two) == _completed(one)
    rows = [steps_of(folder_of(config)) for config in (one, two)]
    assert any(row["loss"] for row in rows[0])
    require_close(*rows, rel=1e-3, abs=1e-5)
    last = newest_checkpoint(folder_of(one)).name
    weights, others = (load_file(folder_of(config) / last / "adapter_model.safetensors") for config in (one, two))
    for name, weight in weights.items():
        assert_close(others[name], weight, atol=1e-5, rtol=1e-3)


def _completed(config: Path) -> list[tuple[Any, ...]]:
    """Iteration, slot, completion and reward of the training completions, sorted to hide which rank made them."""
    with closing(sqlite3.connect(config.with_name("journal.sqlite"))) as database:
        query = "SELECT iteration, slot, completion, reward FROM grades WHERE split = 'train' ORDER BY 1, 2, 3"
        return database.execute(query).fetchall()
