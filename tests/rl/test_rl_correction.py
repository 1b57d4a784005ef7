"""The importance correction: its ratios, and what they do to TRL's loss."""

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.rl.correction import ImportanceCorrection, Mode
from rl.rl_runs import write_run
from rl.rl_trainers import WrittenServer, a_trainer, first_generation, gradients

REWARDS = [1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75]


def logs(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows).log()


# Probabilities of two completions by the trained model and by the engine; the second one is a token shorter.
TRAINED = logs([[0.5, 0.5, 0.8], [0.2, 0.9, 0.5]])
OUTPUTS = {
    "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    "sampling_per_token_logps": logs([[0.25, 0.5, 0.4], [0.4, 0.1, 1.0]]),
}


@pytest.mark.parametrize(
    ("mode", "ratio", "beyond"),
    [
        # Per token the ratios are 2, 1, 2 and ½, 9; per completion 4 and 4½.
        ("token_truncate", [[2.0, 1.0, 2.0], [0.5, 3.0, 1.0]], 1 / 5),
        ("token_mask", [[2.0, 1.0, 2.0], [0.5, 0.0, 1.0]], 1 / 5),
        ("sequence_truncate", [[3.0], [3.0]], 1.0),
        ("sequence_mask", [[0.0], [0.0]], 1.0),
    ],
)
def test_the_ratio_is_cut_or_left_out_beyond_its_limit(mode: Mode, ratio: list[list[float]], beyond: float) -> None:
    found, measured = ImportanceCorrection(mode, 3.0).ratio(TRAINED, OUTPUTS)

    assert torch.allclose(found, torch.tensor(ratio))
    assert measured["sampling/ratio_beyond_limit"].item() == pytest.approx(beyond)
    # |log 2| + 0 + |log 2| + |log ½| + |log 9| over five tokens.
    assert measured["sampling/logprob_difference"].item() == pytest.approx(0.8553, abs=1e-4)


@pytest.mark.parametrize("mode", ["sequence_truncate", "sequence_mask"])
def test_a_ratio_within_its_limit_stays_as_it_is(mode: Mode) -> None:
    found, measured = ImportanceCorrection(mode, 4.25).ratio(TRAINED, OUTPUTS)

    assert found[0].item() == pytest.approx(4.0)
    assert found[1].item() == pytest.approx(4.25 if mode == "sequence_truncate" else 0.0)
    assert measured["sampling/ratio_beyond_limit"].item() == pytest.approx(1 / 2)


def test_a_token_whose_probability_the_engine_does_not_know_or_that_nobody_sampled_is_not_corrected() -> None:
    unknown = OUTPUTS["sampling_per_token_logps"].clone()
    unknown[0, 0] = float("nan")
    outputs = {**OUTPUTS, "sampling_per_token_logps": unknown, "tool_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}
    found, measured = ImportanceCorrection("token_mask", 3.0).ratio(TRAINED, outputs)

    assert torch.allclose(found, torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 1.0]]))
    assert measured["sampling/ratio_beyond_limit"].item() == 0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("correction"), tiny_model)


def corrected(config: Path, mode: str, *overrides: str) -> Any:
    return a_trainer(config, WrittenServer(REWARDS), f"rollout.importance_correction={mode}", *overrides)


def with_engine_off_by(trainer: Any, difference: float) -> None:
    """From now on the engine says of each completion's first token that it was likelier than the model holds it."""
    roll_out = trainer.rollout_func

    def off(rows: list[str], trainer: Any) -> dict[str, Any]:
        made = roll_out(rows, trainer)
        logprobs = [[first + difference, *rest] for first, *rest in made["logprobs"]]
        return {**made, "logprobs": logprobs}

    trainer.rollout_func = off


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("steps_per_generation", [2, 4])
def test_an_engine_that_says_what_the_model_says_leaves_the_gradient_as_it_is(
    config: Path, mode: str, steps_per_generation: int
) -> None:
    # With dropout, of which the engine knows nothing; of a generation that serves one optimizer step, or two.
    changes = ("lora.dropout=0.1", f"rollout.steps_per_generation={steps_per_generation}")
    plain, careful = corrected(config, "none", *changes), corrected(config, mode, *changes)
    batch = first_generation(careful)

    assert "sampling_per_token_logps" in batch
    assert careful._metrics["train"]["sampling/logprob_difference"][0] < 1e-5
    assert careful._metrics["train"]["sampling/ratio_beyond_limit"] == [0]
    found, wanted = gradients(careful, batch), gradients(plain, first_generation(plain))
    assert wanted.norm() > 1e-3
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "difference", "first", "rest"),
    [
        # The engine holds a first token for e^0.5 times as likely: ρ is e^−0.5 there, or for the whole completion.
        ("token_truncate", 0.5, 0.6065, 1.0),
        ("sequence_truncate", 0.5, 0.6065, 0.6065),
        # For e^−2 times as likely: ρ = 7.39 is beyond the limit of 3.
        ("token_truncate", -2.0, 3.0, 1.0),
        ("token_mask", -2.0, 0.0, 1.0),
        ("sequence_truncate", -2.0, 3.0, 3.0),
        ("sequence_mask", -2.0, 0.0, 0.0),
    ],
)
def test_the_loss_is_trls_with_each_tokens_share_times_its_ratio(
    config: Path, mode: str, difference: float, first: float, rest: float
) -> None:
    trainer = corrected(config, mode)
    with_engine_off_by(trainer, difference)
    batch = first_generation(trainer)
    logprobs, mask = by_hand(trainer, batch), batch["completion_mask"]
    ratio = torch.full_like(logprobs, rest)
    ratio[:, 0] = first
    # Rewards less their group's mean, as `scale_rewards: none` has it: means 0.4375 and 0.6875.
    advantages = torch.tensor([0.5625, -0.4375, -0.1875, 0.0625, -0.6875, 0.3125, 0.3125, 0.0625]).unsqueeze(1)
    # dr_grpo: the sum over the tokens of −ρ·r·A, with r the ratio of new to old policy, over 8 rows of 8 tokens.
    new_to_old = (logprobs - logprobs.detach()).exp()
    loss = -(ratio * new_to_old * advantages * mask).sum() / (8 * 8)
    trainer.model.zero_grad()
    loss.backward()
    wanted = torch.cat([each.grad.flatten().clone() for each in trainer.model.parameters() if each.requires_grad])

    assert trainer._compute_loss(trainer.model, batch).item() == pytest.approx(loss.item(), abs=1e-5)
    assert torch.allclose(gradients(trainer, batch), wanted, rtol=1e-3, atol=1e-6)


def by_hand(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """log p of the completions' tokens, each completion by itself and without padding; 0 in the place of padding."""
    rows = []
    for row in range(len(batch["completion_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        logits = trainer.model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(dim=-1).gather(1, completion[:, None]).squeeze(1)
        rows.append(torch.cat([chosen, chosen.new_zeros(batch["completion_ids"].shape[1] - len(completion))]))
    return torch.stack(rows)


def test_an_engine_that_is_wrong_changes_the_gradient(config: Path) -> None:
    plain, careful = corrected(config, "none"), corrected(config, "token_truncate")
    without = gradients(plain, first_generation(plain))
    right = gradients(careful, first_generation(careful))
    with_engine_off_by(careful, 0.5)
    wrong = gradients(careful, first_generation(careful))

    assert (right - without).norm() / without.norm() < 1e-4
    assert (wrong - without).norm() / without.norm() > 0.01


def test_the_probabilities_that_are_compared_are_those_at_the_sampling_temperature(config: Path) -> None:
    trainer = corrected(config, "token_truncate", "rollout.temperature=0.5")
    trainer._compute_loss(trainer.model, first_generation(trainer))
    assert trainer._metrics["train"]["sampling/logprob_difference"][0] < 1e-5
