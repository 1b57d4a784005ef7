"""The backend on unsloth. This is the only file that names it.

Importing unsloth rewrites classes of transformers, PEFT and TRL, so it has to come before them: the backend is
chosen first, and its module is imported then.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.core.cache import cache_dir

# Read once, at import: without it unsloth writes its generated code into the current folder.
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_dir() / "unsloth"))

from unsloth import FastLanguageModel  # isort: skip  # pyright: ignore[reportMissingImports]

import torch

from toolkit.core.models.base import LoadedModel, TrainingSettings
from toolkit.core.models.devices import compute_dtype, training_device
from toolkit.core.models.hf import HfBackend, keep_trained_weights_in_float32, model_files, with_adapter
from toolkit.core.models.lora import peft_config
from toolkit.core.models.tokens import extend_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolkit.core.config.lora import LoraConfig
    from toolkit.core.config.model import ModelConfig


class UnslothBackend:
    """`FastLanguageModel`, with our tokenizer, our adapter settings and our defaults."""

    name = "unsloth"

    def __init__(self) -> None:
        self._hf = HfBackend()

    def load_tokenizer(self, config: "ModelConfig", *, chatml: bool) -> "PreTrainedTokenizerBase":
        """The same tokenizer as that of the hf backend, so that the same ids are trained."""
        return self._hf.load_tokenizer(config, chatml=chatml)

    def load_for_training(
        self, config: "ModelConfig", lora: "LoraConfig | None", *, settings: TrainingSettings
    ) -> LoadedModel:
        """As the hf backend does, through unsloth's loaders."""
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        tokenizer, new_ids = self._hf.tokenizer_with_new_ids(config, chatml=settings.chatml)
        full = lora is None and config.adapter is None
        model, _ = FastLanguageModel.from_pretrained(
            model_files(config),
            max_seq_length=settings.max_length,
            dtype=torch.float32 if full else dtype,
            load_in_4bit=config.quantization == "4bit",
            load_in_8bit=config.quantization == "8bit",
            full_finetuning=full,
            trust_remote_code=config.trust_remote_code,
        )
        extend_model(model, new_ids)
        if config.adapter is not None:
            model = with_adapter(model, config.adapter, trainable=True)
        elif lora is not None:
            model = _add_adapter(model, lora, new_ids, settings)
        keep_trained_weights_in_float32(model)
        return LoadedModel(model.to(device), tokenizer, device, dtype, new_ids)

    def load_for_inference(self, config: "ModelConfig", adapter: Path | None, *, chatml: bool) -> LoadedModel:
        """The hf backend's model: generation does not depend on unsloth's training kernels."""
        return self._hf.load_for_inference(config, adapter, chatml=chatml)


def _add_adapter(model: Any, lora: "LoraConfig", new_ids: tuple[int, ...], settings: TrainingSettings) -> Any:
    wanted = peft_config(model, lora, new_ids)
    torch.manual_seed(settings.seed)
    return FastLanguageModel.get_peft_model(
        model,
        r=wanted.r,
        lora_alpha=wanted.lora_alpha,
        lora_dropout=wanted.lora_dropout,
        target_modules=wanted.target_modules,
        modules_to_save=wanted.modules_to_save,
        use_rslora=wanted.use_rslora,
        use_dora=wanted.use_dora,
        bias="none",
        use_gradient_checkpointing="unsloth" if settings.gradient_checkpointing else False,
        random_state=settings.seed,
        ensure_weight_tying=wanted.ensure_weight_tying,
    )
