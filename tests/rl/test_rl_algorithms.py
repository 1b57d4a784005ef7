"""The presets: what reaches TRL, and that they are the algorithms whose names they have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from posttrain.rl.presets import PRESETS
from rl.rl_runs import write_run
from rl.rl_trainers import WrittenServer, a_trainer, first_generation, gradients

REWARDS = [1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75]

# loss_type, importance_sampling_level, scale_rewards, beta, epsilon, epsilon_high, mask_truncated_completions
WANTED: dict[str, tuple[Any, ...]] = {
    "grpo": ("grpo", "token", "group", 0.04, 0.2, 0.2, False),
    "dr_grpo": ("dr_grpo", "token", "none", 0.0, 0.2, 0.2, False),
    "dapo": ("dapo", "token", "group", 0.0, 0.2, 0.28, True),
    "gspo": ("grpo", "sequence", "group", 0.0, 3e-4, 4e-4, False),
    "bnpo": ("bnpo", "token", "group", 0.0, 0.2, 0.2, False),
    "cispo": ("cispo", "token", "group", 0.0, 0.2, 5.0, False),
    "rloo": ("luspo", "token", "none", 0.0, 0.2, 0.2, False),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("algorithms"), tiny_model, training={"micro_batch_size": 8})


def test_every_preset_is_checked_here() -> None:
    assert WANTED.keys() == PRESETS.keys()


@pytest.mark.parametrize("algorithm", WANTED)
def test_a_preset_reaches_trl(config: Path, algorithm: str) -> None:
    args = a_trainer(config, WrittenServer(), f"algorithm={algorithm}").args
    fields = (args.loss_type, args.importance_sampling_level, args.scale_rewards, args.beta, args.epsilon)
    assert (*fields, args.epsilon_high, args.mask_truncated_completions) == WANTED[algorithm]
    assert (args.delta, args.top_entropy_quantile) == (None, 1.0)


def test_what_the_config_says_wins_over_the_preset(config: Path) -> None:
    changes = {
        "loss_type": "bnpo",
        "importance_sampling_level": "sequence",
        "scale_rewards": "batch",
        "beta": 0.5,
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "delta": 4.0,
        "mask_truncated_completions": True,
        "top_entropy_quantile": 0.2,
    }
    overrides = [f"objective.{name}={value}" for name, value in changes.items()]
    args = a_trainer(config, WrittenServer(), *overrides).args
    assert {name: getattr(args, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("algorithm", "high"),
    # One number clips alike on both sides, unless the preset clips them apart.
    [("grpo", 0.1), ("dr_grpo", 0.1), ("dapo", 0.28), ("gspo", 4e-4), ("cispo", 5.0)],
)
def test_one_clipping_number_is_for_both_sides_where_the_preset_has_one(
    config: Path, algorithm: str, high: float
) -> None:
    args = a_trainer(config, WrittenServer(), f"algorithm={algorithm}", "objective.epsilon=0.1").args
    assert (args.epsilon, args.epsilon_high) == (0.1, high)


def test_the_shape_of_a_step_and_the_sampling_reach_trl(config: Path) -> None:
    shape = ("rollout.steps_per_generation=4", "rollout.iterations=2", "training.micro_batch_size=2")
    args = a_trainer(config, WrittenServer(), *shape, "rollout.temperature=0.7").args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 4)
    assert (args.num_generations, args.steps_per_generation, args.num_iterations) == (4, 4, 2)
    assert (args.temperature, args.max_completion_length) == (0.7, 8)
    assert (args.shuffle_dataset, args.use_vllm, args.disable_dropout) == (False, False, False)


class GivenCompletions(RLOOTrainer):
    """RLOO, which has no hook for rollouts, on completions that were made elsewhere."""

    given: dict[str, list[list[int]]]

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[Any, ...]:
        return self.given["prompts"], None, {}

    def _generate_single_turn(self, prompt_ids: Any, images: Any, multimodal_fields: Any) -> list[list[int]]:
        return self.given["completions"]


def ids(batch: dict[str, Any], part: str) -> list[list[int]]:
    pairs = zip(batch[f"{part}_ids"], batch[f"{part}_mask"].bool(), strict=True)
    return [row[mask].tolist() for row, mask in pairs]


def common_arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "beta": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
    }


def other_trainer(kind: Any, args: Any, ours: Any) -> Any:
    """A trainer of TRL's own on the same model, with the same rewards."""
    trainer = kind(
        model=ours.model,
        reward_funcs=[lambda completions, **_: REWARDS],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["0"] * 8}),
        processing_class=ours.processing_class,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def test_the_gradient_of_rloo_is_three_quarters_of_that_of_trls_rloo_trainer(config: Path, tmp_path: Path) -> None:
    ours = a_trainer(config, WrittenServer(REWARDS), "algorithm=rloo")
    batch = first_generation(ours)
    found = gradients(ours, batch)
    theirs = other_trainer(GivenCompletions, RLOOConfig(**common_arguments(tmp_path)), ours)
    theirs.given = {"prompts": ids(batch, "prompt"), "completions": ids(batch, "completion")}
    same = theirs._generate_and_score_completions([{"prompt": "0"}] * 8)
    wanted = gradients(theirs, same)

    assert torch.equal(same["completion_ids"], batch["completion_ids"])
    # With G = 4 the baseline holds the completion itself, so that an advantage is 3/4 of one against the others.
    assert torch.allclose(batch["advantages"], 0.75 * same["advantages"], atol=1e-6)
    assert torch.cosine_similarity(found, wanted, dim=0).item() == pytest.approx(1.0, abs=1e-4)
    assert (found.norm() / wanted.norm()).item() == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "gspo", "bnpo", "cispo"])
@pytest.mark.parametrize("quantile", [1.0, 0.5])
def test_loss_and_gradient_are_those_of_trl_on_the_same_completions(
    config: Path, tmp_path: Path, algorithm: str, quantile: float
) -> None:
    # The second group's rewards are all equal: it teaches nothing, and still has its part in the entropy's quantile.
    server = WrittenServer([*REWARDS[:4], 0.5, 0.5, 0.5, 0.5])
    changes = (f"algorithm={algorithm}", f"objective.top_entropy_quantile={quantile}", "objective.beta=0")
    ours = a_trainer(config, server, *changes)
    batch = first_generation(ours)
    same = {name: getattr(ours.args, name) for name in ("loss_type", "importance_sampling_level", "scale_rewards")}
    same |= {name: getattr(ours.args, name) for name in ("epsilon", "epsilon_high", "top_entropy_quantile")}
    theirs = other_trainer(GRPOTrainer, GRPOConfig(**common_arguments(tmp_path), **same), ours)

    assert batch["advantages"][:4].any()
    assert not batch["advantages"][4:].any()
    assert ours._compute_loss(ours.model, batch).item() == pytest.approx(
        theirs._compute_loss(theirs.model, batch).item(), abs=1e-6
    )
    found, wanted = gradients(ours, batch), gradients(theirs, batch)
    assert wanted.norm() > 1e-4
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-6)
