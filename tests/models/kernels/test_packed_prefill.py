"""A cache filled with packed prompts holds what padded prompts leave in it."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from posttrain.models.kernels import packed_prefill as module
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.packed_prefill import packed_prefill


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    recomputed_attention.use_in(made)
    return made


def expected(model: LlamaForCausalLM, prompt: tuple[int, ...]) -> DynamicCache:
    """The cache of one prompt, by transformers alone."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([prompt]), past_key_values=cache)
    return cache


@torch.inference_mode()
@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(st.integers(0, 49), max_size=9).map(tuple), min_size=1, max_size=6), st.integers(1, 20))
def test_each_row_ends_with_its_prompt_after_zeros(
    model: LlamaForCausalLM, prompts: list[tuple[int, ...]], at_once: int
) -> None:
    prompts = [*prompts, prompts[0]]  # one that comes twice
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        cache = packed_prefill(model, prompts)
    width = max(map(len, prompts))
    assert cache.get_seq_length() == width
    for row, prompt in enumerate(prompts):
        layers: list[Any] = list(cache.layers) if width else []
        padding = width - len(prompt)
        for number, layer in enumerate(layers):
            assert not layer.keys[row, :, :padding].any()
            assert not layer.values[row, :, :padding].any()
            if prompt:
                alone: Any = expected(model, prompt).layers[number]
                torch.testing.assert_close(layer.keys[row, :, padding:], alone.keys[0])
                torch.testing.assert_close(layer.values[row, :, padding:], alone.values[0])


@torch.inference_mode()
def test_a_prompt_of_many_rows_goes_through_the_model_once(model: LlamaForCausalLM) -> None:
    tokens: list[int] = []
    hook = model.model.register_forward_hook(
        lambda module, args, inputs, output: tokens.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    packed_prefill(model, [(1, 2, 3)] * 8 + [(4, 5)])
    hook.remove()
    assert tokens == [5]
