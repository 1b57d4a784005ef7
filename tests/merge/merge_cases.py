"""Tiny random models with their own tokenizers, and adapters with only random trained values."""

import json
import shutil
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.merge.merge import MergeReport, merge_adapter
from posttrain.models.hf import HfBackend

# 256 bytes, the special tokens and a few merges; the model has four more rows, as in many models.
VOCABULARY = 280
ROWS = 284
CHATML = ChatConfig()


@dataclass(frozen=True)
class Case:
    """A base and an adapter on it; `logits` is what they compute together for `ids`."""

    base: ModelConfig
    adapter: Path
    chat: ChatConfig
    ids: torch.Tensor
    logits: torch.Tensor


def make_base(
    folder: Path,
    *,
    tied: bool = False,
    chatml: bool = True,
    shard: str = "20KB",
    dtype: torch.dtype = torch.float32,
    rows: int = ROWS,
    kind: str = "llama",
    added_tokens: tuple[str, ...] = (),
) -> ModelConfig:
    """Write a tiny model, by default in several files; without `chatml` its tokenizer lacks the ChatML tokens."""
    _model(kind, rows, tied).to(dtype).save_pretrained(folder, max_shard_size=shard)
    _tokenizer(chatml).save_pretrained(folder)
    return ModelConfig(name=str(folder), backend="hf", dtype="float32", added_tokens=added_tokens)


def make_case(base: ModelConfig, adapter: Path, chat: ChatConfig = CHATML, **lora: Any) -> Case:
    """Put an adapter on a base, change its trained values by random amounts, and save it.

    `trainable_token_indices` may be a function of the new tokens' ids.
    """
    chatml = chat.template == "chatml"
    loaded = HfBackend().load_for_inference(base, None, chatml=chatml)
    lora = deepcopy({"target_modules": "all-linear", **lora})  # PEFT modifies the lists it is given
    if callable(indices := lora.get("trainable_token_indices")):
        lora["trainable_token_indices"] = indices(list(loaded.new_token_ids))
    adapted = get_peft_model(loaded.model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **lora))
    torch.manual_seed(1)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(str(adapter))
    ids = torch.arange(len(loaded.tokenizer))[None]
    again = HfBackend().load_for_inference(base, adapter, chatml=chatml).model
    return Case(base, adapter, chat, ids, logits(again, ids))


def write_run(case: Case, folder: Path) -> Path:
    """Write a config to `folder`, and its finished run with the adapter at its root; return the config's path."""
    run = folder / "runs" / "task"
    shutil.copytree(case.adapter, run)
    (run / "config.yaml").write_text(yaml.safe_dump({"model": case.base.model_dump(), "chat": {}}))
    (run / "manifest.json").write_text("{}")
    config = folder / "task.yaml"
    config.write_text("run: {output_dir: runs}\n")
    return config


def merge_case(case: Case, output: Path, **keywords: Any) -> MergeReport:
    """`merge_adapter` on a case."""
    return merge_adapter(case.base, case.adapter, output, chat=case.chat, **keywords)


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a model, shape [1, tokens, vocabulary]."""
    return model(ids).logits


def logits_of_folder(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a model folder that plain transformers loads."""
    return logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), ids)


def merged_by_peft(case: Case) -> dict[str, torch.Tensor]:
    """The weights that PEFT's `merge_and_unload` gives for the same adapter."""
    loaded = HfBackend().load_for_inference(case.base, case.adapter, chatml=case.chat.template == "chatml")
    return loaded.model.merge_and_unload().state_dict()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor in the folder's files."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def json_of(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def file_names(files: Iterable[Path]) -> list[str]:
    """The names of the files, sorted."""
    return sorted(file.name for file in files)


def save_tokenizer(folder: Path) -> None:
    """Save the tokenizer with ChatML, for a model that is written by hand."""
    _tokenizer(chatml=True).save_pretrained(folder)


def _tokenizer(chatml: bool) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<s>", "</s>", *(["<|im_start|>", "<|im_end|>"] if chatml else [])]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the answer is in the question", "a model and an adapter"] * 4, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return wrapped


def _model(kind: str, rows: int, tied: bool) -> Any:
    torch.manual_seed(0)
    # Weights this large make differences visible in the logits.
    shared: dict[str, Any] = {
        "vocab_size": rows,
        "tie_word_embeddings": tied,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=512, **shared))
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **shape, **shared))
