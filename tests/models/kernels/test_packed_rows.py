"""Rows that go through a model as one sequence have the scores and gradients of padded rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.errors import ModelError
from posttrain.models.adapters.lora import add_adapter
from posttrain.models.kernels.compiled_layers import compile_layers
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.packed_rows import should_pack, why_not_packed
from posttrain.models.model_shape import require_packing

LONG, OTHER = list(range(10, 90)), list(range(100, 190))
SHORT = [5, 6, 7]
# Three answers to a prompt of 80 tokens, one to a prompt of 90, and to a prompt of 3 tokens two and an empty one.
ROWS = [
    (LONG, [200, 201]),
    (LONG, [202, 203, 204, 205]),
    (LONG, [206]),
    (OTHER, [207, 208, 209]),
    (SHORT, [210, 211]),
    (SHORT, [212]),
    (SHORT, []),
]
GROUPS = [
    ROWS,
    [row for row in ROWS if row[0] != OTHER],
    [*ROWS[:3], (OTHER, [207]), (OTHER, [208, 209, 210])],
    [(LONG, list(range(200, 230))), (LONG, [1, 2]), (SHORT, list(range(230, 260))), (LONG, [3]), (LONG, [])],
    [(SHORT, [1])],
]
SIZES = {"vocab_size": 384, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def batch(rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels, padded on the right: position t predicts token t + 1."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows) - 1
    inputs = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED_LABEL)
    for row, (prompt, answer) in enumerate(rows):
        ids = torch.tensor([*prompt, *answer])
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
    return inputs, labels


def llama(tiny_model: Path) -> Any:
    adapted = add_adapter(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=4), (), seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    return adapted


def with_learnt_positions(tiny_model: Path) -> Any:
    sizes = {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=384, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, **sizes))


def with_normed_queries(tiny_model: Path) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=16))


def with_positions_by_the_longest_row(tiny_model: Path) -> Any:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=None, rope_parameters=rope))


def with_attention_dropout(tiny_model: Path) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, head_dim=16, attention_dropout=0.1))


def with_a_window(tiny_model: Path) -> Any:
    return MistralForCausalLM(MistralConfig(**SIZES, **HEADS, sliding_window=40))


def with_a_state(tiny_model: Path) -> Any:
    return MambaForCausalLM(MambaConfig(vocab_size=384, hidden_size=64, num_hidden_layers=1, state_size=4))


def with_biased_attention(tiny_model: Path) -> Any:
    return FalconForCausalLM(
        FalconConfig(vocab_size=384, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    )


def with_plain_attention(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")


def scores_and_gradients(model: Any, rows: list[tuple[list[int], list[int]]], *, packed: bool) -> list[torch.Tensor]:
    model.zero_grad()
    inputs, labels = batch(rows)
    head = LabelledHead(model, packed=packed)
    temperatures = torch.linspace(0.7, 1.2, int((labels != IGNORED_LABEL).sum()))
    chosen, entropies = head.scores(model, inputs, labels, temperatures=temperatures, entropies=True)
    head.detach()
    assert entropies is not None
    assert chosen.shape == (sum(len(answer) for _, answer in rows),)
    (chosen * torch.linspace(-1, 2, len(chosen))).sum().backward()
    return [chosen.detach(), entropies, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize("kind", [llama, with_learnt_positions, with_normed_queries])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_scores_and_gradients_are_those_of_padded_rows(
    kind: Callable[[Path], Any], checkpointing: bool, tiny_model: Path
) -> None:
    torch.manual_seed(0)
    model = kind(tiny_model).train()
    assert should_pack(True, model, torch.float32, 128)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    for rows in GROUPS:
        packed, padded = (scores_and_gradients(model, rows, packed=each) for each in (True, False))
        for number, (one, other) in enumerate(zip(packed, padded, strict=True)):
            rounding = 1e-5 if number < 2 else 1e-3
            torch.testing.assert_close(one, other, rtol=rounding, atol=1e-5)


@pytest.mark.long
def test_compiled_layers_compute_what_layers_as_written_do(tiny_model: Path) -> None:
    models = [llama(tiny_model).train() for _ in range(2)]
    for model in models:
        assert should_pack(True, model, torch.float32, 128)
    compile_layers(models[0], 3, torch.float32, packed=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in GROUPS:
        compiled, plain = (scores_and_gradients(model, rows, packed=True) for model in models)
        for one, other in zip(compiled, plain, strict=True):
            assert float((one - other).norm()) <= 1e-3 * float(other.norm())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before  # nothing is compiled for another shape


@pytest.mark.parametrize(
    ("kind", "longest", "reason"),
    [
        (llama, 128, None),
        (with_learnt_positions, 128, None),
        (with_normed_queries, 128, None),
        (with_a_window, 40, None),
        (with_a_window, 41, "window of 40 tokens"),
        (with_a_state, 128, "state"),
        (with_biased_attention, 128, "attention"),
        (with_plain_attention, 128, "attention"),
        (with_attention_dropout, 128, "dropout"),
        (with_positions_by_the_longest_row, 128, "rope_type: dynamic"),
    ],
)
def test_only_models_whose_layers_see_a_row_as_it_is_get_packed_rows(
    kind: Callable[[Path], Any], longest: int, reason: str | None, tiny_model: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = kind(tiny_model).train()
    model.config.save_pretrained(tmp_path)
    without_weights = ModelConfig(name=str(tmp_path), attention="eager" if kind is with_plain_attention else "auto")
    found = why_not_packed(model, torch.float32, longest)
    assert found is None if reason is None else reason in str(found)
    assert model.training
    assert should_pack(None, model, torch.float32, longest) is (reason is None)
    if reason is None:
        require_packing(without_weights, longest)
        return
    with pytest.raises(ModelError, match=rf"padding_free .*{model.config.model_type}.*{reason}.*by_length") as refusal:
        should_pack(True, model, torch.float32, longest)
    with pytest.raises(ModelError) as same:
        require_packing(without_weights, longest)
    assert str(same.value) == str(refusal.value)
