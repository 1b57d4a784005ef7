"""The backend on unsloth; the only file that imports it.

Where there is a CUDA device, importing unsloth rewrites classes of transformers, PEFT and TRL, so it has to come
before them: the backend is chosen first, and its module is imported then. On a CPU it leaves models to transformers
and PEFT; docs/unsloth.md tells what is left of it there.
"""

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.base.cache import cache_dir
from posttrain.base.text import first_line

# Read once, at import: without it unsloth writes its generated code into the current folder.
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_dir() / "unsloth"))
# On a CPU whose bfloat16 it takes for slow it would compute in float32, whatever the config asks for.
os.environ.setdefault("UNSLOTH_CPU_BF16", "1")

with redirect_stdout(sys.stderr):  # it greets, and what a command prints is its result
    from unsloth import FastLanguageModel  # isort: skip  # pyright: ignore[reportMissingImports]

import torch
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.errors import ModelError
from posttrain.models import hf
from posttrain.models.backend import LoadedModel, TrainingSettings, compute_dtype, training_device
from posttrain.models.hf import model_files, one_line_errors
from posttrain.models.location import require_all_weights
from posttrain.models.lora import peft_config
from posttrain.models.tokens import extend_model

if TYPE_CHECKING:
    from peft import LoraConfig as PeftLoraConfig
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.model import LoraConfig, ModelConfig

# Positions that are planned for where nobody said how long texts get; more than that is computed all the same.
_POSITIONS = 2048

# In an adapter's targets unsloth trains these in full, with nothing but a line on the screen.
_VOCABULARY = ("embed_tokens", "lm_head")


class UnslothBackend:
    """`FastLanguageModel`, with our tokenizer, our adapter settings and our defaults."""

    name = "unsloth"

    def __init__(self) -> None:
        self._hf = hf.HfBackend()

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
        model = _base(
            config,
            max_seq_length=settings.max_length,
            dtype=torch.float32 if full else dtype,
            full_finetuning=full,
            use_gradient_checkpointing=_checkpointing(settings),
        )
        extend_model(model, new_ids)
        if config.adapter is not None:
            model = _with_kernels(hf.with_adapter(model, config.adapter, trainable=True), settings)
        elif lora is not None:
            model = _add_adapter(model, lora, new_ids, settings)
        hf.keep_trained_weights_in_float32(model)
        model.config.use_cache = False
        return LoadedModel(model.to(device), tokenizer, device, dtype, new_ids)

    def load_for_inference(self, config: "ModelConfig", adapter: Path | None, *, chatml: bool) -> LoadedModel:
        """The hf backend's model; on a CUDA device, and where unsloth is asked for by name, its `for_inference`."""
        if config.backend != "unsloth" or not torch.cuda.is_available():
            return self._hf.load_for_inference(config, adapter, chatml=chatml)
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        tokenizer, new_ids = self._hf.tokenizer_with_new_ids(config, chatml=chatml)
        model = _base(config, max_seq_length=_POSITIONS, dtype=dtype, use_gradient_checkpointing=False)
        extend_model(model, new_ids)
        if adapter is not None:
            model = hf.with_adapter(model, adapter, trainable=False)
        model = FastLanguageModel.for_inference(model.to(device).requires_grad_(False))
        return LoadedModel(model, tokenizer, device, dtype, new_ids)


def _base(config: "ModelConfig", **keywords: Any) -> Any:
    """The base model by unsloth; ModelError where it cannot be loaded, in the words of the hf backend."""
    if config.quantization != "none":
        hf.quantization_settings(config, keywords["dtype"])  # refuses what unsloth would pass over on a CPU
    if config.attention != "auto":
        keywords["attn_implementation"] = config.attention
    source = {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}
    with one_line_errors(config), redirect_stdout(sys.stderr):
        files = model_files(config)
        _require_weights(config, files, source)
        model, _ = FastLanguageModel.from_pretrained(
            files,
            load_in_4bit=config.quantization == "4bit",
            load_in_8bit=config.quantization == "8bit",
            **source,
            **keywords,
        )
    return model


def _require_weights(config: "ModelConfig", files: str, source: dict[str, Any]) -> None:
    """Refuse a model that lacks weights, which unsloth would make up. Nothing is read but their names."""
    if hasattr(AutoConfig.from_pretrained(files, **source), "quantization_config"):
        return  # their names say nothing before the quantiser has been at them
    loader: Any = AutoModelForCausalLM.from_pretrained
    _, loading = loader(files, **source, device_map="meta", use_safetensors=True, output_loading_info=True)
    require_all_weights(config.name, loading["missing_keys"], config.key)


def _checkpointing(settings: TrainingSettings) -> str | bool:
    return "unsloth" if settings.gradient_checkpointing else False


def _add_adapter(model: Any, lora: "LoraConfig", new_ids: tuple[int, ...], settings: TrainingSettings) -> Any:
    """A new adapter that trains what the hf backend would train."""
    wanted = peft_config(model, lora, new_ids)
    targets = _targets(model, wanted)
    try:
        with redirect_stdout(sys.stderr):
            adapted = FastLanguageModel.get_peft_model(
                model,
                r=wanted.r,
                lora_alpha=wanted.lora_alpha,
                lora_dropout=wanted.lora_dropout,
                target_modules=targets,
                modules_to_save=wanted.modules_to_save,
                trainable_token_indices=wanted.trainable_token_indices,
                use_rslora=wanted.use_rslora,
                use_dora=wanted.use_dora,
                bias=wanted.bias,
                use_gradient_checkpointing=_checkpointing(settings),
                random_state=settings.seed,
                ensure_weight_tying=wanted.ensure_weight_tying,
                # Where it puts embeddings aside on a CUDA device; a folder in the current one unless given.
                temporary_location=str(cache_dir() / "unsloth" / "buffers"),
            )
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ModelError(f"lora: {first_line(error)}") from error
    return _trainable(adapted)


def _targets(model: Any, wanted: "PeftLoraConfig") -> Any:
    """The layers that get an adapter, so that unsloth reads them as PEFT would."""
    targets = wanted.target_modules
    if targets is None:  # unsloth has a choice of its own
        kind = model.config.model_type
        if kind not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
            raise ModelError(
                f"lora.target_modules: auto knows nothing of {kind} models; use all-linear, or name layers"
            )
        return sorted(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[kind])
    if isinstance(targets, str):
        return targets
    in_full = [name for name in targets if name.rsplit(".", 1)[-1] in _VOCABULARY]
    if in_full:
        raise ModelError(
            f"lora.target_modules: unsloth puts no adapter on {in_full[0]}; name it in lora.modules_to_save, or set "
            "model.backend to hf"
        )
    return sorted(targets)


def _with_kernels(model: Any, settings: TrainingSettings) -> Any:
    """An adapter that PEFT loaded, with unsloth's kernels over it where it has any, as its own loader does it."""
    patch = getattr(FastLanguageModel, "patch_peft_model", None)  # not there on a CPU
    return model if patch is None else _trainable(patch(model, use_gradient_checkpointing=_checkpointing(settings)))


def _trainable(model: Any) -> Any:
    """PEFT says anew what is trained: on a CUDA device unsloth freezes the rows of new tokens."""
    model.set_adapter("default")
    return model
