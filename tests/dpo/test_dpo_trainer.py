"""The loss of an optimizer step, however it is split into micro-batches, and the exact numbers of held-out rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpo.dpo_runs import HELD_OUT, PAIRS, TRAINING, Built, build, training_rows, write_rows, write_run
from posttrain.dpo.datasets import PairedDataset
from posttrain.dpo.measures import share_above, summary
from posttrain.models.kernels import frozen_head, labelled_head
from posttrain.runs.metrics import read_metrics
from running import metrics

METHODS: list[dict[str, Any]] = [
    {"type": "dpo"},
    {"type": "kto", "undesirable_weight": 2.0},
    {"type": "orpo"},
    {"type": "mixture", "losses": [{"type": "ipo"}, {"type": "sft", "weight": 0.5}]},
]


def adapter(built: Built) -> dict[str, torch.Tensor]:
    return {name: each.detach() for name, each in built.loaded.model.named_parameters() if each.requires_grad}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["type"])
def test_uneven_micro_batches_train_like_one_big_batch(
    method: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    trained = {}
    for size in (1, 4) if method["type"] != "kto" else (2, 4):
        # AdamW would turn a gradient of pure rounding error into a full-sized step.
        training = {**TRAINING, "micro_batch_size": size, "optimizer": "sgd"}
        built = build(write_run(tmp_path, tiny_model, method=method, training=training), folder=str(size))
        built.train()
        trained[size] = built
    small, big = trained.values()
    for name, weight in adapter(big).items():
        torch.testing.assert_close(adapter(small)[name], weight, atol=1e-5, rtol=1e-4)
    numbers = [training_rows(metrics(built.run.path)) for built in (small, big)]
    for one, other in zip(*numbers, strict=True):
        assert one["order_hash"] == other["order_hash"]
        for name in ("loss", "reward_margin", "chosen_reward", "chosen_logprob"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5)
        if one["step"] > 1:  # before that, only rounding separates chosen from rejected
            assert one["reward_accuracy"] == other["reward_accuracy"]


@pytest.mark.parametrize("method", [{"type": "dpo"}, {"type": "orpo"}], ids=lambda method: method["type"])
def test_a_pair_of_weight_three_trains_like_three_pairs(
    method: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    # Three copies of a pair plus another pair, in steps of 4, or the pair with weight 3 plus the other, in steps of 2:
    # every step is the same weighted mean.
    copied = build(write_run(tmp_path, tiny_model, rows=[PAIRS[0]] * 3 + [PAIRS[1]], method=method), folder="copied")
    copied.train()
    training = {**TRAINING, "rows_per_step": 2, "micro_batch_size": 1}
    rows = [{**PAIRS[0], "weight": 3.0}, PAIRS[1]]
    weighted = build(write_run(tmp_path, tiny_model, rows=rows, method=method, training=training), folder="weighted")
    weighted.train()
    for name, weight in adapter(copied).items():
        torch.testing.assert_close(adapter(weighted)[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_recomputed_activations_change_nothing(reference: str, tiny_model: Path, tmp_path: Path) -> None:
    losses = []
    for recomputed in (False, True):
        training = {**TRAINING, "gradient_checkpointing": recomputed}
        config = write_run(tmp_path, tiny_model, training=training, reference={"type": reference})
        built = build(config, folder=str(recomputed))
        built.train()
        losses.append([row["loss"] for row in training_rows(metrics(built.run.path))])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0][2] < losses[0][0] - 0.05


def test_the_head_sees_only_answers_and_the_reference_is_not_asked_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(write_run(tmp_path, tiny_model))
    seen: list[int] = []

    def counted(hidden: torch.Tensor, *others: Any, **options: Any) -> frozen_head.Scores:
        seen.append(len(hidden))
        return frozen_head.frozen_head_scores(hidden, *others, **options)

    # The head is frozen, so this function replaces it, and the layer itself gets no tokens.
    monkeypatch.setattr(labelled_head, "frozen_head_scores", counted)
    left = []
    handle = built.loaded.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: left.append(output.shape[:-1].numel())
    )
    built.train()
    handle.remove()
    assert set(left) == {0}
    rows = training_rows(metrics(built.run.path))
    assert sum(seen) == sum(row["trained_tokens"] for row in rows) < sum(row["tokens"] for row in rows)


def trained_and_computed(config: Path) -> tuple[Built, int]:
    """The run of a config after training, and the number of tokens that went through the model."""
    built, computed = build(config), []
    handle = built.loaded.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: computed.append(inputs[0].numel())
    )
    built.train()
    handle.remove()
    return built, sum(computed)


def test_what_is_computed_besides_the_tokens_is_counted_as_padding(tiny_model: Path, tmp_path: Path) -> None:
    training = {**TRAINING, "batching": "by_length"}
    built, computed = trained_and_computed(write_run(tmp_path, tiny_model, training=training))
    rows = training_rows(metrics(built.run.path))
    # The last token of each row is only a label.
    padded, tokens = computed + 3 * 8, sum(row["tokens"] for row in rows)
    assert tokens < padded < 1.2 * tokens
    assert [row["padding_share"] for row in rows] == [pytest.approx(1 - tokens / padded, abs=1e-4)] * 3


def test_without_padding_each_prompt_is_computed_once_and_nothing_behind_an_answer(
    tiny_model: Path, tmp_path: Path
) -> None:
    training = {**TRAINING, "batching": "padding_free"}
    built, computed = trained_and_computed(write_run(tmp_path, tiny_model, training=training))
    pairs = built.data.datasets["a"]
    assert isinstance(pairs, PairedDataset)
    trained = [side.row(row)[1] for side in (pairs.chosen, pairs.rejected) for row in range(len(pairs))]
    # A row is computed up to the token that predicts its last one. A prompt of 17 tokens or more is computed once less,
    # but for its last token.
    ends, prompts = [int(each.nonzero()[0][-1]) for each in trained], [int(each.argmax()) - 1 for each in trained[:4]]
    assert prompts == [12, 16, 31, 9]
    assert computed == 3 * (sum(ends) - 16 - 31)
    assert [row["padding_share"] for row in training_rows(metrics(built.run.path))] == [0, 0, 0]


@pytest.mark.parametrize("method", [{"type": "dpo"}, {"type": "orpo"}], ids=lambda method: method["type"])
def test_a_prompt_that_is_computed_once_for_both_answers_changes_no_number(
    method: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    found, tokens = [], []
    for batching in ("padding_free", "by_length"):
        training = {**TRAINING, "optimizer": "sgd", "batching": batching}
        reference: Any = {"type": "live"} if method["type"] == "dpo" else ...
        config = write_run(tmp_path, tiny_model, training=training, method=method, reference=reference)
        built = build(config, folder=batching)
        seen: list[int] = []
        built.loaded.model.get_input_embeddings().register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(inputs[0].numel())
        )
        built.train()
        found.append(built)
        tokens.append(sum(seen))
    joined, apart = found
    assert tokens[0] < 0.8 * tokens[1]
    for name, weight in adapter(apart).items():
        torch.testing.assert_close(adapter(joined)[name], weight, atol=1e-5, rtol=1e-4)
    for one, other in zip(*(training_rows(metrics(built.run.path)) for built in found), strict=True):
        for name in ("loss", "grad_norm", "reward_margin", "chosen_logprob", "rejected_logprob"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: method["type"])
def test_held_out_numbers_do_not_depend_on_how_their_rows_are_batched(
    method: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    found = []
    for size in (2, 4):
        sections: dict[str, Any] = {
            "method": method,
            "training": {**TRAINING, "micro_batch_size": size},
            "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 2},
        }
        built = build(write_run(tmp_path, tiny_model, **sections), folder=str(size))
        built.train()
        found.append([row for row in read_metrics(built.run.metrics) if "eval_loss" in row])
    assert [row["step"] for row in found[0]] == [0, 2, 3]
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_held_out_numbers_are_those_of_training_on_the_same_rows(tiny_model: Path, tmp_path: Path) -> None:
    # The held-out rows are the training rows, so the evaluation before step 3 is what step 3 logs.
    validation = {"dataset": {"path": "pairs.jsonl"}, "every": 1}
    built = build(write_run(tmp_path, tiny_model, validation=validation))
    built.train()
    rows = read_metrics(built.run.metrics)
    before = next(row for row in rows if row["step"] == 2 and "eval_loss" in row)
    third = training_rows(rows)[2]
    assert {name.removeprefix("eval_"): value for name, value in before.items() if name != "step"} == {
        name: pytest.approx(third[name], rel=1e-4, abs=1e-5)
        for name in (
            "loss",
            "reward_accuracy",
            "reward_margin",
            "chosen_reward",
            "rejected_reward",
            "chosen_logprob",
            "rejected_logprob",
        )
    }


def test_the_validation_loss_is_weighted_by_the_rows(tiny_model: Path, tmp_path: Path) -> None:
    def loss(weights: tuple[float, ...]) -> float:
        rows = [{**row, "weight": weight} for row, weight in zip(HELD_OUT, weights, strict=True)]
        config = write_run(
            tmp_path, tiny_model, method={"type": "orpo"}, validation={"dataset": {"path": "held_out.jsonl"}}
        )
        write_rows(tmp_path / "held_out.jsonl", rows)
        return build(config).recipe.evaluate(None, 0)[0]["loss"]

    one_by_one = [loss(tuple(1.0 if row == each else 1e-6 for row in range(7))) for each in range(7)]
    mean = (2 * one_by_one[0] + sum(one_by_one[1:])) / 8
    assert loss((2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)) == pytest.approx(mean, abs=1e-4)


def test_pairs_are_summed_up_by_hand() -> None:
    measures = {
        "loss": torch.tensor([1.0, 2.0, 3.0, 4.0]),
        "chosen_reward": torch.tensor([1.0, 0.5, -1.0, 2.0]),
        "rejected_reward": torch.tensor([0.0, 0.5, 1.0, -1.0]),
        "chosen_logprob": torch.tensor([-10.0, -20.0, -30.0, -40.0]),
        "rejected_logprob": torch.tensor([-4.0, -8.0, -12.0, -16.0]),
    }
    # The chosen reward is higher, equal, lower, higher.
    assert summary(measures) == {
        "reward_accuracy": 0.625,
        "reward_margin": 0.5,
        "chosen_reward": 0.625,
        "rejected_reward": 0.125,
        "chosen_logprob": -25.0,
        "rejected_logprob": -10.0,
    }


def test_labelled_answers_are_summed_up_by_hand() -> None:
    measures = {
        "loss": torch.zeros(5),
        "reward": torch.tensor([1.0, 3.0, 0.0, 1.0, 2.0]),
        "logprob": torch.tensor([-1.0, -3.0, -4.0, -5.0, -6.0]),
        "desirable": torch.tensor([True, True, False, False, False]),
        "divergence": torch.full((5,), 0.25),
    }
    # 1 beats 0, ties with 1 and loses to 2; 3 beats all three.
    assert summary(measures) == {
        "reward_accuracy": 4.5 / 6,
        "reward_margin": 1.0,
        "chosen_reward": 2.0,
        "rejected_reward": 1.0,
        "chosen_logprob": -2.0,
        "rejected_logprob": -5.0,
        "divergence": 0.25,
    }
    some = {name: values[:2] for name, values in measures.items()}
    assert summary(some) == {"chosen_reward": 2.0, "chosen_logprob": -2.0, "divergence": 0.25}


def test_the_share_above_counts_couples() -> None:
    assert share_above(torch.tensor([2.0]), torch.tensor([1.0, 2.0, 3.0, 0.0])) == 2.5 / 4
