"""The tiny random model that stands in for a large one."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# The text on which the tiny tokenizer is trained.
_CORPUS = [
    "system\nuser\nassistant\nYou are a helpful assistant.\n",
    "What is the capital of France? The capital of France is Paris.",
    "Anna has 3 apples and buys 4 more. How many apples does she have? She has 7 apples.",
    "one two three four five six seven eight nine ten\n\n1 2 3 4 5 6 7 8 9 10\n",
] * 4
_TOKENS = 380
# A few more rows than tokens, as in many real models.
_ROWS = 384


def write_tiny_model(folder: Path) -> Path:
    """Write a random 2-layer Llama with tied embeddings, in float32, and its byte-level tokenizer to the folder.

    It has 384 embedding rows, 4 more than the tokenizer has entries.
    """
    tokenizer = write_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=_ROWS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Write the tokenizer to the folder, and return it."""
    tokenizer = _tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    return tokenizer


def _tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, which can encode any text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
