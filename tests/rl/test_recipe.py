"""The recipe's loss on real completions against the formula on the model's logits, and its old policy and reference."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.config.load import load_config
from posttrain.models.weights.checkpoint import save_trained_weights
from posttrain.rl.config import RLConfig
from posttrain.rl.generation import MicroBatch
from posttrain.rl.objective import Means
from posttrain.rl.recipe import RLRecipe
from rl.rl_recipes import (
    WrittenServer,
    a_recipe,
    gradient_by_hand,
    load,
    logprobs_by_hand,
    loss_and_gradient,
    move_adapter,
)
from rl.rl_runs import write_run

REWARDS = [1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75]
# The rewards minus their group's mean, 0.4375 and 0.6875.
ADVANTAGES = [0.5625, -0.4375, -0.1875, 0.0625, -0.6875, 0.3125, 0.3125, 0.0625]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("recipe"), tiny_model)


def measured(recipe: RLRecipe) -> dict[str, float]:
    """The step's metrics so far."""
    return recipe._means.over_all_ranks(recipe._accelerator)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_loss_and_gradient_are_those_of_the_formula_however_the_step_is_cut(config: Path, size: int) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), f"training.micro_batch_size={size}")
    micro_batches = recipe.batch(0)
    assert len(micro_batches) == 8 // size

    loss, gradient = loss_and_gradient(recipe, micro_batches)

    assert recipe.generation is not None
    rollouts = recipe.generation.rollouts
    # dr_grpo on-policy: −Σ A over all tokens / (8 rows of 8 tokens); the gradient of log p has the same weights.
    assert loss == pytest.approx(-sum(a * r.tokens for a, r in zip(ADVANTAGES, rollouts, strict=True)) / 64, abs=1e-6)
    wanted = gradient_by_hand(recipe, [torch.tensor(a / 64) for a in ADVANTAGES])
    assert wanted.norm() > 1e-3
    assert torch.allclose(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_the_completions_of_a_prompt_go_through_the_model_together_and_share_it(config: Path) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), "training.micro_batch_size=4")
    for micro_batch in recipe.batch(0):
        ids = micro_batch.completions.input_ids
        first = int((micro_batch.completions.labels[0] >= 0).nonzero()[0])
        assert len(ids) == 4
        assert (ids[:, : first + 1] == ids[0, : first + 1]).all()


def test_the_server_is_told_slot_length_and_cut_of_each_completion(config: Path) -> None:
    server = WrittenServer(REWARDS)
    recipe = a_recipe(config, server)
    recipe.batch(0)
    ((iteration, label, items),) = server.graded
    assert recipe.generation is not None
    rollouts = recipe.generation.rollouts

    assert (iteration, label) == (0, "train-0-0")
    assert [item.slot for item in items] == [0] * 4 + [1] * 4
    assert [item.sample_id for item in items] == ["train:0:0"] * 4 + ["train:0:1"] * 4
    assert [item.completion_tokens for item in items] == [each.tokens for each in rollouts]
    # A completion that does not end its turn or begin another one was cut at 8 tokens.
    ending = recipe.loaded.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    ends = [int(each.ids[-1]) in ending for each in rollouts]
    assert [item.truncated for item in items] == [not ended for ended in ends]
    assert all(item.completion_tokens == 8 for item in items if item.truncated)


def test_dropout_is_off_for_good(config: Path) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), "lora.dropout=0.5", "objective.beta=0.1")
    (one, *_) = recipe.batch(0)
    assert loss_and_gradient(recipe, [one])[0] == loss_and_gradient(recipe, [one])[0]


REUSED = ("rollout.steps_per_generation=2", "rollout.iterations=2", "run.save_every=4", "evaluation=null")


def test_old_probabilities_are_those_at_the_generation_s_start(config: Path) -> None:
    """Two parts, two passes: the first part's come from its first training pass, the second's from before it."""
    recipe = a_recipe(config, WrittenServer(REWARDS * 2), *REUSED)
    model, kept = recipe.loaded.model, {}
    for step in range(4):
        for number, micro_batch in enumerate(recipe.batch(step)):
            recipe.loss(model, micro_batch)
            assert micro_batch.old_logprobs is not None
            kept.setdefault((step % 2, number), []).append(micro_batch.old_logprobs)
        if step == 0:
            move_adapter(model)
    assert recipe.generation is not None
    for first, again in kept.values():
        assert torch.equal(first, again)
    recipe.batch(2)
    assert measured(recipe) == {}
    for micro_batch in recipe.batch(3):
        recipe.loss(model, micro_batch)
    # The weights have moved, so some ratios are outside 0.8 to 1.2.
    assert measured(recipe)["clipped_share"] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_16_bits_no_ratio_is_clipped_before_a_weight_has_changed(config: Path, dtype: str) -> None:
    """gspo clips at 3e-4, less than the difference bfloat16 makes if a row is computed in a batch of another shape."""
    changes = ("algorithm=gspo", f"model.dtype={dtype}", "lora.r=4", *REUSED)
    recipe = a_recipe(config, WrittenServer(REWARDS * 2), *changes)
    for step in range(2):
        for micro_batch in recipe.batch(step):
            with recipe.loaded.autocast():
                recipe.loss(recipe.loaded.model, micro_batch)
            assert torch.equal(_new(recipe, micro_batch), micro_batch.old_logprobs)
        assert measured(recipe)["clipped_share"] == 0


def _new(recipe: RLRecipe, micro_batch: MicroBatch) -> torch.Tensor:
    with recipe.loaded.autocast():
        return recipe._scorer(recipe.loaded.model, micro_batch.completions)[0].detach()


def divergence(recipe: RLRecipe) -> float:
    for micro_batch in recipe.batch(0):
        recipe.loss(recipe.loaded.model, micro_batch)
    return measured(recipe)["kl"]


def test_the_divergence_is_0_before_training_and_that_of_the_formula_after_a_move(config: Path) -> None:
    start = a_recipe(config, WrittenServer(REWARDS), "algorithm=grpo", move=False)
    assert divergence(start) == 0
    recipe = a_recipe(config, WrittenServer(REWARDS), "algorithm=grpo")
    found = divergence(recipe)
    assert recipe.generation is not None
    total = count = 0.0
    for rollout in recipe.generation.rollouts:
        new = logprobs_by_hand(recipe.loaded.model, rollout)
        with recipe.loaded.model.disable_adapter():
            difference = logprobs_by_hand(recipe.loaded.model, rollout) - new
        total += (difference.exp() - difference - 1).sum().item()
        count += rollout.tokens
    assert found == pytest.approx(total / count, rel=1e-4)
    assert found > 1e-3


NEW_TOKENS = 'model.added_tokens=["<one>", "<two>"]'


@pytest.fixture(scope="module")
def taught_tokens(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that trained the embedding rows of two new tokens."""
    loaded = load(load_config(config, RLConfig, ["model.dtype=float32", NEW_TOKENS]))
    move_adapter(loaded.model)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "trainable_tokens" in name and parameter.requires_grad:
                parameter += 3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("taught")
    save_trained_weights(loaded, folder)
    return folder


@pytest.mark.parametrize("lora", ["an adapter that taught tokens", "a new adapter", "all weights"])
def test_the_reference_is_the_start_where_tokens_were_added(
    tmp_path: Path, tiny_model: Path, taught_tokens: Path, lora: str
) -> None:
    start: dict[str, Any] = {
        "an adapter that taught tokens": {"model": {"adapter": str(taught_tokens)}, "lora": None},
        "a new adapter": {},
        "all weights": {},
    }[lora]
    all_weights = ("lora=null",) if lora == "all weights" else ()
    # The prompts contain the new tokens.
    server = WrittenServer(REWARDS, {0: "<one> <two> <one>", 1: "<two>"})
    config = write_run(tmp_path, tiny_model, **start)
    recipe = a_recipe(config, server, "algorithm=grpo", NEW_TOKENS, *all_weights, move=False)
    assert divergence(recipe) == pytest.approx(0, abs=1e-7)
    with torch.no_grad():
        for name, parameter in recipe.loaded.model.named_parameters():
            if parameter.requires_grad and ("lora_B" in name or all_weights):
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    for each in recipe.batch(1):
        recipe.loss(recipe.loaded.model, each)
    assert measured(recipe)["kl"] > 1e-4


def test_only_the_surest_tokens_are_left_out_by_the_entropy_of_the_whole_step(config: Path) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), "objective.top_entropy_quantile=0.25")
    micro_batches = recipe.batch(0)
    model, entropies = recipe.loaded.model, []
    for each in micro_batches:
        entropies.append(recipe._scorer(model, each.completions)[1][each.mask])
    together = torch.cat(entropies)
    assert len({each.threshold for each in micro_batches}) == 1
    assert micro_batches[0].threshold == pytest.approx(float(together.quantile(0.75)), abs=1e-5)


# --- importance correction of the engine's probabilities ---


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_an_engine_that_says_what_the_model_says_leaves_the_gradient_as_it_is(
    config: Path, mode: str, temperature: float
) -> None:
    warm = f"rollout.temperature={temperature}"
    plain, careful = (
        a_recipe(config, WrittenServer(REWARDS), f"rollout.importance_correction={each}", warm)
        for each in ("none", mode)
    )
    found, wanted = (loss_and_gradient(each, each.batch(0)) for each in (careful, plain))

    assert measured(careful)["sampling/logprob_difference"] < 1e-5
    assert measured(careful)["sampling/ratio_beyond_limit"] == 0
    assert wanted[1].norm() > 1e-3
    assert torch.allclose(found[1], wanted[1], rtol=1e-4, atol=1e-6)


def off_by(recipe: RLRecipe, difference: float) -> list[MicroBatch]:
    """A step whose engine reports the log-probability of each completion's first token off by `difference`."""
    micro_batches = []
    for each in recipe.batch(0):
        assert each.sampling_logprobs is not None
        sampling = each.sampling_logprobs.clone()
        sampling[:, 0] += difference
        micro_batches.append(replace(each, sampling_logprobs=sampling))
    return micro_batches


@pytest.mark.parametrize(
    ("mode", "difference", "first", "rest"),
    [
        # The engine reports e^0.5 times the probability: ρ is e^−0.5 for the first token, or for the whole completion.
        ("token_truncate", 0.5, 0.6065, 1.0),
        ("sequence_truncate", 0.5, 0.6065, 0.6065),
        # The engine reports e^−2 times the probability: ρ = 7.39 is beyond the limit of 3.
        ("token_truncate", -2.0, 3.0, 1.0),
        ("token_mask", -2.0, 0.0, 1.0),
        ("sequence_truncate", -2.0, 3.0, 3.0),
        ("sequence_mask", -2.0, 0.0, 0.0),
    ],
)
def test_each_token_s_share_of_the_loss_is_times_its_ratio(
    config: Path, mode: str, difference: float, first: float, rest: float
) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), f"rollout.importance_correction={mode}")
    _, gradient = loss_and_gradient(recipe, off_by(recipe, difference))
    assert recipe.generation is not None
    weights = []
    for advantage, rollout in zip(ADVANTAGES, recipe.generation.rollouts, strict=True):
        ratio = torch.full((rollout.tokens,), rest)
        ratio[0] = first
        weights.append(ratio * advantage / 64)
    assert torch.allclose(gradient, gradient_by_hand(recipe, weights), rtol=1e-3, atol=1e-6)


def test_a_mixture_of_experts_is_corrected_as_any_other_model(tmp_path: Path, tiny_model: Path) -> None:
    model = mixture_of_experts(tiny_model, tmp_path / "moe")
    config = write_run(tmp_path / "run", model)
    careful = ("rollout.importance_correction=token_truncate", "lora.target_modules=[q_proj, v_proj]")
    right, wrong = (a_recipe(config, WrittenServer(REWARDS), *careful) for _ in range(2))
    _, with_right = loss_and_gradient(right, right.batch(0))
    assert measured(right)["sampling/logprob_difference"] < 1e-4
    _, with_wrong = loss_and_gradient(wrong, off_by(wrong, 0.5))
    assert measured(wrong)["sampling/logprob_difference"] > 0.01
    assert (with_wrong - with_right).norm() / with_right.norm() > 0.01


def mixture_of_experts(tiny_model: Path, folder: Path) -> Path:
    """A random model of four experts whose config enables the router loss."""
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = Qwen3MoeConfig(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.1,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).float().save_pretrained(folder)
    return folder


def test_means_count_over_all_micro_batches(config: Path) -> None:
    means = Means()
    means.add("kl", torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]]))
    means.add("kl", torch.tensor([[8.0, 100.0]]), torch.tensor([[True, False]]))
    accelerator = a_recipe(config, WrittenServer(REWARDS))._accelerator
    assert means.over_all_ranks(accelerator) == {"kl": 4.0}
