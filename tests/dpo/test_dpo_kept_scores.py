"""A cached reference computes each score that training needs once, and an interruption loses few of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpo.dpo_runs import TRAINING, Built, build, run, training_rows, write_run
from posttrain.base import console
from posttrain.base.cache import cache_dir
from posttrain.dpo import scores
from posttrain.dpo.scores import AskedModel
from running import metrics

ROWS = [{"prompt": f"{number}?", "chosen": "one " * (number % 5 + 1), "rejected": "two"} for number in range(40)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows in each call of a model."""
    found: list[int] = []
    whole = AskedModel.logprobs

    def counted(self: AskedModel, input_ids: torch.Tensor, *others: Any) -> torch.Tensor:
        found.append(len(input_ids))
        return whole(self, input_ids, *others)

    monkeypatch.setattr(AskedModel, "logprobs", counted)
    return found


def stages(steps: int) -> list[dict[str, Any]]:
    return [{"name": "one", "until_step": steps, "mix": {"a": 1}}]


def kept() -> list[np.ndarray]:
    return [np.load(path) for path in sorted((cache_dir() / "reference").glob("*.npy"))]


def drawn(built: Built) -> set[int]:
    return {draw.row for step in range(built.data.max_steps) for draw in built.data.curriculum.step(step)}


def test_only_what_training_draws_is_computed_and_later_only_what_is_missing(
    tiny_model: Path, tmp_path: Path, asked: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    two = build(write_run(tmp_path, tiny_model, rows=ROWS, stages=stages(2)))
    assert sum(asked) == 2 * 8
    assert "reference log-probabilities of datasets.a: 8 rows of 40\n" in capfd.readouterr().err
    [before] = kept()
    assert [set(np.flatnonzero(~np.isnan(side))) for side in before] == [drawn(two)] * 2
    two.train()
    assert training_rows(metrics(two.run.path))[0]["loss"] == pytest.approx(np.log(2), abs=1e-4)

    asked.clear()
    five = build(write_run(tmp_path, tiny_model, rows=ROWS, stages=stages(9), training={**TRAINING, "max_steps": 5}))
    assert sum(asked) == 2 * 12
    [later] = kept()
    assert [set(np.flatnonzero(~np.isnan(side))) for side in later] == [drawn(five)] * 2
    assert drawn(five) > drawn(two)
    assert np.array_equal(later[~np.isnan(before)], before[~np.isnan(before)])
    asked.clear()
    build(write_run(tmp_path, tiny_model, rows=ROWS, stages=stages(4)))
    assert asked == []


def test_all_held_out_rows_are_computed_and_for_kto_the_mismatched_ones_of_what_is_drawn(
    tiny_model: Path, tmp_path: Path, asked: list[int]
) -> None:
    held_out = {"dataset": {"path": "held_out.jsonl"}}
    config = write_run(tmp_path, tiny_model, rows=ROWS, stages=stages(2), validation=held_out, method={"type": "kto"})
    built = build(config)
    # 8 answers and 2 × 7 held-out ones, and for each a mismatched row.
    assert sum(asked) == 2 * 8 + 2 * 14
    built.train()
    assert all(np.isfinite(row["loss"]) for row in training_rows(metrics(built.run.path)))


def test_what_was_computed_before_an_interruption_is_not_computed_again(
    tiny_model: Path, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "_BATCHES_OF_A_PORTION", 2)
    config = write_run(tmp_path, tiny_model, rows=ROWS, stages=stages(10))
    whole = AskedModel.logprobs
    left = iter(range(5))

    def interrupted(self: AskedModel, *arguments: Any) -> torch.Tensor:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(AskedModel, "logprobs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(config)
    # Five batches of four pairs were computed, but the last one was in an unfinished portion.
    assert [int((~np.isnan(each)).sum()) for each in kept()] == [2 * 16]
    asked.clear()
    build(config)
    assert asked == [2 * 4] * 6


def test_a_run_that_was_stopped_while_the_reference_was_computed_can_be_started_resumed_or_replaced(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = write_run(tmp_path, tiny_model)
    for option in ((), ("--resume",), ("--overwrite",)):
        # What a run leaves that had started a checkpoint.
        (tmp_path / "runs" / "run" / ".trainer").mkdir(parents=True)
        folder = run(config, *option)
        assert (folder / "result.json").is_file()
        run(config, expect=2)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_lines_tell_of_the_progress_where_there_is_no_terminal(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0.0)
    build(write_run(tmp_path, tiny_model, rows=ROWS[:12], stages=stages(3)))
    said = capfd.readouterr().err.splitlines()
    lines = [line for line in said if line.startswith("reference: datasets.a: ")]
    assert lines == [f"reference: datasets.a: {done} of 12 rows" for done in (4, 8, 12)]


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {**TRAINING, "micro_batch_size": 2}},
        {"model": {"attention": "eager"}},
    ],
    ids=["rows at once", "attention"],
)
def test_numbers_that_were_rounded_otherwise_are_not_taken(
    sections: dict[str, Any], tiny_model: Path, tmp_path: Path, asked: list[int]
) -> None:
    build(write_run(tmp_path, tiny_model))
    files = len(kept())
    asked.clear()
    if "model" in sections:
        sections = {"model": {"name": str(tiny_model), "dtype": "float32", **sections["model"]}}
    build(write_run(tmp_path, tiny_model, **sections))
    assert sum(asked) == 8
    assert len(kept()) == 2 * files


def test_numbers_of_another_torch_are_not_taken(
    tiny_model: Path, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(write_run(tmp_path, tiny_model))
    asked.clear()
    monkeypatch.setattr(torch, "__version__", "2.0.0")
    build(write_run(tmp_path, tiny_model))
    assert sum(asked) == 8
