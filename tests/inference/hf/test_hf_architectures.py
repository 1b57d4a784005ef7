"""Padding and shared prompts change no answer, whether a model keeps its whole past, a window or a state."""

import pytest
import torch
from loaded_model import Loaded
from transformers import AutoModelForCausalLM, GPT2Config, MambaConfig, MistralConfig

from posttrain.inference.engine import Sampling

SIZES = {"vocab_size": 384, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
CONFIGS = {
    "learned positions": GPT2Config(**{**SIZES, "n_positions": 64}, n_head=4, bos_token_id=None, eos_token_id=2),
    "a window of 6 tokens": MistralConfig(**SIZES, **HEADS, sliding_window=6),
    "a state": MambaConfig(**SIZES),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_answers_are_the_same_alone_in_a_batch_and_with_the_prompt_shared(sharp: Loaded, uneven, name: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = Loaded(AutoModelForCausalLM.from_config(CONFIGS[name]).float().eval(), sharp.tokenizer)
    sampling = Sampling(12)
    alone = [other.ask([request], sampling)[0] for request in uneven]
    assert other.ask(uneven, sampling, batch_size=8) == alone
    assert other.ask([*uneven, *uneven], sampling, batch_size=16) == [*alone, *alone]
    assert len({completion.token_ids for completion in alone}) == len(uneven)
