"""Evaluations: what is sampled and averaged, how two are compared, and which checkpoint is the best."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from posttrain.base.intervals.paired import difference_interval
from posttrain.errors import RunError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason, derive_seed
from posttrain.rl.config import EvaluationConfig
from posttrain.rl.report import change_table, paired_difference
from posttrain.rl.rollout.evaluation import Evaluator
from posttrain.rl.rollout.rollout import Prompt
from posttrain.train.evaluate import discard_evaluations, evaluation_file
from rl.rl_recipes import WrittenServer
from rl.rl_runs import WriteRun, folder_of, lines, train_here
from running import metrics


class Engine:
    """Stands for the pipeline: completes prompts with their own tokens and records requests; cuts the first sample."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []

    def publish(self, step: int) -> None:
        pass

    def complete(self, step: int, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        self.requests += requests
        return {
            (place, number): Completion(request.prompt_ids, StopReason.END if number else StopReason.LENGTH)
            for place, request in enumerate(requests)
            for number in range(request.n)
        }

    def close(self) -> None:
        pass


class Prompts:
    """Held-out prompts of 1, 2, 3, … tokens; more than `limit` tokens are too long."""

    def __init__(self, limit: int = 9) -> None:
        self._limit = limit

    def held_out(self, count: int) -> list[Prompt]:
        return [Prompt(f"v:{n}", "a", n, (7,) * (n + 1), "text", n + 1 > self._limit) for n in range(count)]


class Tokenizer:
    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def evaluator(server: WrittenServer, folder: Path, count: int, engine: Engine, limit: int = 9, **config: Any) -> Any:
    prompts: Any = Prompts(limit)
    return Evaluator(EvaluationConfig(**config), prompts, count, engine, Tokenizer(), server, folder)


def test_an_evaluation_averages_what_was_graded_and_counts_what_was_not(tmp_path: Path) -> None:
    # Prompts of 1, 2 and 3 tokens, with two samples each; the first sample is truncated.
    server = WrittenServer([1.0, 0.5, None, 0.0, 0.25, None])
    found = evaluator(server, tmp_path, 3, Engine(), samples=2, temperature=1.0).evaluate(4)

    # Four of six have a reward: (1 + 1/2 + 0 + 1/4) / 4.
    assert found == {
        "reward": 0.4375,
        "graders/it": 0.4375,
        "tokens": 2.0,
        "truncated": 0.5,
        "ungraded": pytest.approx(1 / 3),
        "too_long_prompts": 0.0,
    }
    kept = lines(tmp_path / "step-000004.jsonl")
    assert [(line["sample_id"], line["reward"]) for line in kept] == [
        ("v:0", 1.0),
        ("v:0", 0.5),
        ("v:1", None),
        ("v:1", 0.0),
        ("v:2", 0.25),
        ("v:2", None),
    ]
    ((iteration, label, items),) = server.graded
    assert (iteration, label, len(items)) == (4, "eval-4", 6)


def test_each_evaluation_samples_under_the_same_seeds(tmp_path: Path) -> None:
    engine = Engine()
    made = evaluator(WrittenServer([1.0] * 4), tmp_path, 2, engine, samples=2, temperature=1.0, seed=3)
    made.evaluate(0)
    made.evaluate(8)

    assert [request.seeds for request in engine.requests] == [
        (derive_seed(3, slot, 0), derive_seed(3, slot, 1)) for slot in (0, 1, 0, 1)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
def test_ranks_share_the_prompts_so_that_each_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    asked = []
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        server = WrittenServer([1.0] * 5)
        engine = Engine()
        of_rank = evaluator(server, tmp_path, 5, engine)
        together = of_rank._prompts()
        made = of_rank._graded(together, 0)
        assert len(together) == 5
        assert len(made) == len(engine.requests) in (5 // ranks, -(-5 // ranks))
        asked += [each.prompt.slot for each in made]
    assert sorted(asked) == [0, 1, 2, 3, 4]


def test_a_held_out_prompt_that_is_too_long_is_not_asked_and_counted(tmp_path: Path) -> None:
    engine = Engine()
    found = evaluator(WrittenServer([1.0] * 2), tmp_path, 4, engine, limit=2).evaluate(0)
    assert found["too_long_prompts"] == 0.5
    assert [len(request.prompt_ids) for request in engine.requests] == [1, 2]


@pytest.mark.parametrize(
    ("limit", "told"), [(9, "none of the 3 .* of step 2 has a reward: it cannot be judged"), (0, "too long")]
)
def test_an_evaluation_without_any_reward_stops_the_run(tmp_path: Path, limit: int, told: str) -> None:
    with pytest.raises(RunError, match=told):
        evaluator(WrittenServer([None] * 3), tmp_path, 3, Engine(), limit).evaluate(2)


def kept(path: Path, rewards: dict[str, list[float | None]]) -> Path:
    rows = [
        {"sample_id": name, "reward": reward, "scores": {"it": None if reward is None else 1 - reward}}
        for name, of_prompt in rewards.items()
        for reward in of_prompt
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_difference_is_between_the_means_of_each_prompt(tmp_path: Path) -> None:
    before = kept(tmp_path / "a", {"p": [0.0, 0.5], "q": [1.0, 1.0], "r": [0.5, None], "gone": [1.0]})
    after = kept(tmp_path / "b", {"p": [1.0, 0.5], "q": [1.0, 0.0], "r": [1.0, 1.0], "new": [0.0]})
    found = paired_difference(before, after)
    other = paired_difference(before, after, "it")

    # Means: p ¼ → ¾, q 1 → ½, r ½ → 1. Differences ½, −½, ½: mean 1/6.
    assert found is not None
    assert (found.before, found.after) == (pytest.approx(7 / 12), pytest.approx(3 / 4))
    assert found.mean == pytest.approx(1 / 6)
    assert (found.low, found.high) == difference_interval([0.5, -0.5, 0.5])[:2]
    assert found.prompts == 3
    # The grader's score is 1 − reward.
    assert other is not None
    assert (other.mean, other.low, other.high) == pytest.approx((-1 / 6, -found.high, -found.low))


def test_a_difference_of_one_prompt_says_little_and_of_none_is_none(tmp_path: Path) -> None:
    before = kept(tmp_path / "a", {"p": [0.0], "q": [None]})
    after = kept(tmp_path / "b", {"p": [1.0], "q": [1.0]})
    found = paired_difference(before, after)

    assert found is not None
    assert (found.mean, found.high, found.prompts) == (1.0, 1.0, 1)
    assert found.low < -0.5
    assert paired_difference(before, kept(tmp_path / "c", {"q": [1.0]})) is None
    assert paired_difference(before, after, "no such grader") is None


@pytest.mark.parametrize(("prompts", "said"), [(29, True), (30, False)])
def test_a_comparison_of_few_prompts_says_that_they_are_few(prompts: int, said: bool) -> None:
    change: dict[str, float] = {"before": 0.25, "after": 0.5, "mean": 0.25, "low": 0.125, "high": 0.375}
    console = Console(width=100, file=StringIO())
    console.print(change_table({"reward": {**change, "prompts": prompts}}))
    text = console.file.getvalue()  # pyright: ignore
    assert "+0.250  (+0.125 to +0.375)" in text
    assert ("prompts are too few to judge by" in text) is said


def test_evaluations_of_later_steps_are_discarded(tmp_path: Path) -> None:
    for step in (0, 2, 4, 1_000_000):
        evaluation_file(tmp_path, step).write_text("")
    discard_evaluations(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000.jsonl", "step-000002.jsonl"]


def test_the_best_checkpoint_is_that_of_the_highest_reward(left_alone: Path) -> None:
    folder = folder_of(left_alone)
    rewards = {row["step"]: row["eval_reward"] for row in metrics(folder) if row.get("eval_reward") and row["step"]}
    best = max(rewards.values())

    assert len(set(rewards.values())) > 1
    first = min(step for step, reward in rewards.items() if reward == best)
    assert (folder / "best").read_text() == f"checkpoint-{first}"


def test_the_best_weights_are_exported_where_the_config_says_so(a_run: WriteRun) -> None:
    # Every held-out answer earns 1, so no later evaluation is better than the first one during training.
    graders = {"says_a": {"type": "regex", "pattern": "(?s).*"}}
    datasets = {
        name: {"path": f"{name}.jsonl", "gold": None, "graders": {"says_a": 1}, "validation_fraction": 0.25}
        for name in ("a", "b")
    }
    evaluation = {"prompts": 2, "samples": 1, "patience": 2}
    changes: dict[str, Any] = {"data": {"graders": graders, "datasets": datasets}, "evaluation": evaluation}
    # Without advantages, only weight decay changes the weights.
    training, run = {"weight_decay": 0.1}, {"export": "best", "save_every": 1, "keep_checkpoints": 1}
    config = a_run(**changes, run=run, training=training)
    result = train_here(config)
    folder = folder_of(config)

    # Two evaluations without improvement, at steps 4 and 6, end the run of 8 steps.
    assert (result["steps"], result["exported"]) == (6, "checkpoint-2")
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-6"}
    exported = (folder / "adapter_model.safetensors").read_bytes()
    assert exported == (folder / "checkpoint-2" / "adapter_model.safetensors").read_bytes()
    assert exported != (folder / "checkpoint-6" / "adapter_model.safetensors").read_bytes()
