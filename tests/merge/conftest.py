"""Tiny random models with tokenizers of their own, and adapters whose every trained value is random."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.model import ModelConfig
from toolkit.core.models.hf import HfBackend

# 256 bytes and three special tokens, with a few merges on top.
VOCABULARY = 280
ROWS = 284


@dataclass(frozen=True)
class Case:
    """A base and an adapter on it; `logits` are what they compute together for `ids`."""

    base: ModelConfig
    adapter: Path
    chat: ChatConfig
    ids: torch.Tensor
    logits: torch.Tensor


def tiny_tokenizer(folder: Path, *, chatml: bool) -> None:
    """A byte-level BPE, which knows the ChatML tokens or has to learn them."""
    special = ["<pad>", "<s>", "</s>", *(["<|im_start|>", "<|im_end|>"] if chatml else [])]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the answer is in the question", "a model and an adapter"] * 4, trainer)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    wrapped.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    wrapped.save_pretrained(folder)


def tiny_model(*, tied: bool, rows: int = ROWS, kind: str = "llama") -> Any:
    """Two layers of width 32 with logits of a size at which differences would show."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {
        "vocab_size": rows,
        "tie_word_embeddings": tied,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **shared))
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **shared,
        )
    )


@pytest.fixture
def make_base(tmp_path: Path) -> Callable[..., ModelConfig]:
    """Write a tiny model, in several files unless told otherwise."""

    def make(
        *,
        tied: bool = False,
        chatml: bool = True,
        shard: str = "20KB",
        dtype: torch.dtype = torch.float32,
        rows: int = ROWS,
        kind: str = "llama",
        added_tokens: tuple[str, ...] = (),
    ) -> ModelConfig:
        folder = tmp_path / "base"
        tiny_model(tied=tied, rows=rows, kind=kind).to(dtype).save_pretrained(folder, max_shard_size=shard)
        tiny_tokenizer(folder, chatml=chatml)
        return ModelConfig(name=str(folder), backend="hf", dtype="float32", added_tokens=added_tokens)

    return make


@pytest.fixture
def make_case(tmp_path: Path) -> Callable[..., Case]:
    """Put an adapter on a base, give all that it trains random values, and save it."""

    def make(base: ModelConfig, chat: ChatConfig = ChatConfig(), **lora: Any) -> Case:  # noqa: B008  # frozen
        chatml = chat.template == "chatml"
        loaded = HfBackend().load_for_inference(base, None, chatml=chatml)
        lora = deepcopy(lora)  # PEFT changes the lists it is given
        lora.setdefault("target_modules", "all-linear")
        if callable(lora.get("trainable_token_indices")):
            lora["trainable_token_indices"] = lora["trainable_token_indices"](list(loaded.new_token_ids))
        adapted = get_peft_model(loaded.model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **lora))
        torch.manual_seed(1)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        adapter = tmp_path / "adapter"
        adapted.save_pretrained(adapter)
        again = HfBackend().load_for_inference(base, adapter, chatml=chatml).model
        ids = torch.arange(len(loaded.tokenizer))[None]
        return Case(base, adapter, chat, ids, logits(again, ids))

    return make


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Shape [1, tokens, vocabulary]."""
    return model(ids).logits


def logits_of_folder(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """By plain transformers, as anyone would load it."""
    return logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), ids)


def merged_by_peft(case: Case) -> dict[str, torch.Tensor]:
    """What `merge_and_unload` makes of the same adapter."""
    loaded = HfBackend().load_for_inference(case.base, case.adapter, chatml=case.chat.template == "chatml")
    assert isinstance(loaded.model, PeftModel)
    return loaded.model.merge_and_unload().state_dict()
