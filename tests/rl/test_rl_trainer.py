"""Completions that teach nothing are not computed, and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig

from posttrain.rl.taught import has_dropout, taught_rows
from posttrain.rl.trainer import CurriculumGRPOTrainer

PROMPTS, LENGTH = 6, 4


def inputs(
    advantages: list[Any], masks: list[list[int]] | None = None, **more: torch.Tensor
) -> dict[str, torch.Tensor]:
    """A micro-batch of completions of 4 tokens each."""
    rows = len(advantages)
    draw = torch.Generator().manual_seed(1)
    return {
        "prompt_ids": torch.randint(3, 300, (rows, 3), generator=draw),
        "prompt_mask": torch.ones(rows, 3, dtype=torch.long),
        "completion_ids": torch.randint(3, 300, (rows, LENGTH), generator=draw),
        "completion_mask": torch.tensor(masks or [[1] * LENGTH] * rows),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(rows * LENGTH),
        **more,
    }


@pytest.fixture(scope="module")
def make_trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    def make(**fields: Any) -> CurriculumGRPOTrainer:
        arguments = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trainer")),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=LENGTH,
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            **fields,
        )
        trainer = CurriculumGRPOTrainer(
            evaluate_rewards=None,
            correction=None,
            end_ids=frozenset({2}),
            model=AutoModelForCausalLM.from_pretrained(tiny_model),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * PROMPTS}),
            processing_class=AutoTokenizer.from_pretrained(tiny_model),
        )
        # As the trainer's own loop does at the start of each optimizer step.
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        return trainer

    return make


def loss_and_gradients(
    trainer: CurriculumGRPOTrainer, batch: dict[str, torch.Tensor]
) -> tuple[float, list[torch.Tensor]]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), [parameter.grad.clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo"])
def test_loss_and_gradient_are_those_of_all_completions(
    make_trainer: Any, loss_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(loss_type=loss_type)
    batch = inputs([0.5, 0.0, -1.0, 0.0], masks=[[1, 1, 1, 0], [1] * 4, [1, 1, 0, 0], [1] * 4])

    found = loss_and_gradients(trainer, batch)
    monkeypatch.setattr("posttrain.rl.trainer.taught_rows", lambda batch, beta: None)
    wanted = loss_and_gradients(trainer, batch)

    assert found[0] == pytest.approx(wanted[0], abs=1e-6)
    for one, other in zip(found[1], wanted[1], strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_only_what_teaches_goes_through_the_model(make_trainer: Any) -> None:
    trainer, seen = make_trainer(), []
    trainer.model.register_forward_hook(
        lambda model, args, kwargs, made: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )

    trainer.compute_loss(trainer.model, inputs([0.5, 0.0, -1.0, 0.0]))
    trainer.compute_loss(trainer.model, inputs([0.0, 0.0, 0.0, 0.0]))

    assert seen == [2, 1]


def test_a_batch_that_teaches_nothing_has_a_gradient_of_zero(make_trainer: Any) -> None:
    loss, gradients = loss_and_gradients(make_trainer(), inputs([0.0] * 4))

    assert loss == 0.0
    assert not any(gradient.any() for gradient in gradients)


def test_old_probabilities_of_what_is_left_out_cannot_overflow(make_trainer: Any) -> None:
    old = torch.full((4, LENGTH), -200.0)  # e^200 is beyond float32
    old[0] = -5.0

    loss, gradients = loss_and_gradients(make_trainer(), inputs([0.5, 0.0, 0.0, 0.0], old_per_token_logps=old))

    assert torch.isfinite(torch.tensor(loss))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_entropy_that_is_logged_is_that_of_what_was_computed(make_trainer: Any) -> None:
    trainer, batch = make_trainer(), inputs([0.5, 0.0, -1.0, 0.0])
    half = {key: value[::2] if value.dim() else value for key, value in batch.items()}

    for each in (batch, half):
        trainer.compute_loss(trainer.model, each)
    with_idle, without = trainer._metrics["train"]["entropy"]

    assert with_idle == pytest.approx(without, abs=1e-5)


def test_with_a_kl_term_every_completion_teaches() -> None:
    assert taught_rows(inputs([0.0, 0.0, 1.0, 0.0]), beta=0.04) is None


@pytest.mark.parametrize(
    ("advantages", "masks", "taught"),
    [
        ([0.0, -0.5, 0.0, 1.0], None, [False, True, False, True]),
        ([0.0, 0.0, 0.0, 0.0], None, [True, False, False, False]),
        ([1.0, 1.0, 0.0, 0.0], [[0] * 4, [1] * 4, [1] * 4, [1] * 4], [False, True, False, False]),
        ([[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]], None, [False, True]),
    ],
)
def test_which_completions_teach(advantages: list[Any], masks: Any, taught: list[bool]) -> None:
    found = taught_rows(inputs(advantages, masks), beta=0.0)

    assert found is not None and found.tolist() == taught


@pytest.mark.parametrize(("dropout", "attention", "found"), [(0.0, 0.0, False), (0.1, 0.0, True), (0.0, 0.1, True)])
def test_dropout_is_found_in_layers_and_in_the_attention(dropout: float, attention: float, found: bool) -> None:
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        attention_dropout=attention,
    )  # fmt: skip
    adapter = LoraConfig(r=2, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    assert has_dropout(get_peft_model(LlamaForCausalLM(config), adapter)) is found
