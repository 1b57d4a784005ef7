"""Backend that loads models with unsloth; the only file that imports it.

On a machine with a CUDA device, importing unsloth rewrites classes of transformers, PEFT and TRL, so it must come
before them: the backend is chosen first, and only then is its module imported. On a CPU it leaves models to
transformers and PEFT; docs/unsloth.md says what it still does there.
"""

import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.base.cache import cache_dir
from posttrain.base.text import first_line

# Read once, at import: without it unsloth writes its generated code into the current directory.
os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_dir() / "unsloth"))
# On a CPU whose bfloat16 it considers slow, unsloth would compute in float32, whatever the config says.
os.environ.setdefault("UNSLOTH_CPU_BF16", "1")

with redirect_stdout(sys.stderr), ExitStack() as after:  # unsloth prints a greeting; stdout is for a command's result
    if not torch.cuda.is_available() and "vllm" not in sys.modules:
        # unsloth tries vLLM by loading each of its libraries. That for AVX-512 ends the process on a CPU without
        # AVX-512, where vLLM itself would choose another.
        sys.modules["vllm"] = None  # pyright: ignore[reportArgumentType]  # as documented: it cannot be imported
        after.callback(sys.modules.pop, "vllm")
    from unsloth import FastLanguageModel  # isort: skip  # pyright: ignore[reportMissingImports]

from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.errors import ModelError
from posttrain.models import hf
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.models.adapters.lora import peft_config
from posttrain.models.adapters.start import start_from_weights
from posttrain.models.backend import LoadedModel, TrainingSettings, compute_dtype, training_device
from posttrain.models.hf import model_files, one_line_errors
from posttrain.models.location import require_all_weights
from posttrain.models.tokens import extend_model

if TYPE_CHECKING:
    from peft import LoraConfig as PeftLoraConfig
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.model import LoraConfig, ModelConfig

# Positions to plan for when the length of texts is unknown; longer texts are computed all the same.
_POSITIONS = 2048

# If an adapter targets these, unsloth trains them in full, with no more than a printed line.
_VOCABULARY = ("embed_tokens", "lm_head")


class UnslothBackend:
    """`FastLanguageModel`, with our tokenizer, our adapter settings and our defaults."""

    name = "unsloth"

    def __init__(self) -> None:
        self._hf = hf.HfBackend()

    def load_tokenizer(self, config: "ModelConfig", *, chatml: bool) -> "PreTrainedTokenizerBase":
        """The hf backend's tokenizer, so that both backends train the same ids."""
        return self._hf.load_tokenizer(config, chatml=chatml)

    def load_for_training(
        self, config: "ModelConfig", lora: "LoraConfig | None", *, settings: TrainingSettings
    ) -> LoadedModel:
        """Load like the hf backend, through unsloth's loaders."""
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        tokenizer, new_ids = self._hf.tokenizer_with_new_ids(config, chatml=settings.chatml)
        if config.adapter is not None:
            require_adapter_fits(config.adapter, config)
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
        model = model.to(device)
        start_from_weights(model, lora, settings.seed)
        return LoadedModel(model, tokenizer, device, dtype, new_ids)

    def load_for_inference(self, config: "ModelConfig", adapter: Path | None, *, chatml: bool) -> LoadedModel:
        """The hf backend's model, or unsloth's `for_inference` on a CUDA device if the config names unsloth."""
        if config.backend != "unsloth" or not torch.cuda.is_available():
            return self._hf.load_for_inference(config, adapter, chatml=chatml)
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        tokenizer, new_ids = self._hf.tokenizer_with_new_ids(config, chatml=chatml)
        if adapter is not None:
            require_adapter_fits(adapter, config)
        model = _base(config, max_seq_length=_POSITIONS, dtype=dtype, use_gradient_checkpointing=False)
        extend_model(model, new_ids)
        if adapter is not None:
            model = hf.with_adapter(model, adapter, trainable=False)
        model = FastLanguageModel.for_inference(model.to(device).requires_grad_(False))
        return LoadedModel(model, tokenizer, device, dtype, new_ids)


def _base(config: "ModelConfig", **keywords: Any) -> Any:
    """The base model, loaded by unsloth; ModelError, worded as in the hf backend, if it cannot be loaded."""
    if config.quantization != "none" and not torch.cuda.is_available():  # unsloth would ignore it
        raise ModelError(
            f"{config.key}.quantization: {config.quantization} by unsloth needs a CUDA device; set it to none, or "
            "backend: hf"
        )
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
    """Refuse a model that lacks weights, which unsloth would make up. Reads only the weights' names."""
    if hasattr(AutoConfig.from_pretrained(files, **source), "quantization_config"):
        return  # the names mean nothing until the quantiser has processed them
    loader: Any = AutoModelForCausalLM.from_pretrained
    _, loading = loader(files, **source, device_map="meta", use_safetensors=True, output_loading_info=True)
    require_all_weights(config.name, loading["missing_keys"], config.key)


def _checkpointing(settings: TrainingSettings) -> str | bool:
    return "unsloth" if settings.gradient_checkpointing else False


def _add_adapter(model: Any, lora: "LoraConfig", new_ids: tuple[int, ...], settings: TrainingSettings) -> Any:
    """A new adapter that trains what the hf backend would train."""
    if lora.target_parameters:
        raise ModelError("lora.target_parameters: not with unsloth; leave it out, or set model.backend: hf")
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
                # Where unsloth offloads embeddings on a CUDA device; by default a folder in the current directory.
                temporary_location=str(cache_dir() / "unsloth" / "buffers"),
            )
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ModelError(f"lora: {first_line(error)}") from error
    return _trainable(adapted)


def _targets(model: Any, wanted: "PeftLoraConfig") -> Any:
    """The layers that get an adapter, in a form that unsloth reads as PEFT would."""
    targets = wanted.target_modules
    if targets is None or isinstance(targets, str):
        return targets
    in_full = [name for name in targets if name.rsplit(".", 1)[-1] in _VOCABULARY]
    if in_full:
        raise ModelError(
            f"lora.target_modules: unsloth puts no adapter on {in_full[0]}; name it in lora.modules_to_save, or set "
            "model.backend to hf"
        )
    return sorted(targets)


def _with_kernels(model: Any, settings: TrainingSettings) -> Any:
    """Apply unsloth's kernels, if any, to an adapter that PEFT loaded, as unsloth's own loader does."""
    patch = getattr(FastLanguageModel, "patch_peft_model", None)  # missing on a CPU
    return model if patch is None else _trainable(patch(model, use_gradient_checkpointing=_checkpointing(settings)))


def _trainable(model: Any) -> Any:
    """Let PEFT set again what is trainable: on a CUDA device unsloth freezes the rows of new tokens."""
    model.set_adapter("default")
    return model
