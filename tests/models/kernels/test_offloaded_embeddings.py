"""An embedding that stays in the machine's memory computes the same, and is refused where it is needed elsewhere."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.errors import ModelError
from posttrain.models.kernels.offloaded_embeddings import device_of, keep_embeddings_on_cpu

IDS = torch.arange(12).view(2, 6)


def model(*, tied: bool = False) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).requires_grad_(False)


def test_it_computes_the_same_and_gives_what_it_found_to_the_device_of_the_ids():
    found = model()
    before = found(input_ids=IDS).logits
    keep_embeddings_on_cpu(found)
    assert torch.equal(found(input_ids=IDS).logits, before)
    assert device_of(found) == found.get_input_embeddings().weight.device == torch.device("cpu")


def test_an_embedding_that_is_also_the_head_is_refused():
    with pytest.raises(ModelError, match=r"^training\.offload_embeddings: .* also its head, .*; set it to false$"):
        keep_embeddings_on_cpu(model(tied=True))


def test_an_embedding_that_is_trained_is_refused():
    found = model()
    found.get_input_embeddings().requires_grad_(True)
    with pytest.raises(ModelError, match=r"^training\.offload_embeddings: the embedding is trained; set it to false$"):
        keep_embeddings_on_cpu(found)
