"""Backend that loads models with transformers and PEFT."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import PeftConfig, PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from posttrain.base.console import console
from posttrain.base.text import first_line, on_one_line
from posttrain.errors import ModelError
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.models.adapters.lora import add_adapter, with_fused_layers, without_false_alarms
from posttrain.models.adapters.start import start_from_weights
from posttrain.models.backend import LoadedModel, TrainingSettings, compute_dtype, training_device
from posttrain.models.gguf import converted_folder
from posttrain.models.kernels.compiled_layers import compile_layers, should_compile
from posttrain.models.kernels.offloaded_embeddings import keep_embeddings_on_cpu
from posttrain.models.kernels.packed_rows import should_pack
from posttrain.models.kernels.router_balance import RouterBalance, router_balance
from posttrain.models.location import CONVERT, locate_model, require_all_weights
from posttrain.models.quantised import keep_layout, quantization_settings
from posttrain.models.tokens import add_tokens, extend_model
from posttrain.models.weights.sharding import require_unscaled, shard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.model import LoraConfig, ModelConfig


_LOADERS_ERRORS = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
# The toolkit's losses compute the head only at trained tokens, so Liger's fused losses are not used.
_KERNELS = {"cross_entropy": False, "fused_linear_cross_entropy": False}


class HfBackend:
    """`AutoModelForCausalLM`, with a PEFT adapter on top if one is configured."""

    name = "hf"

    def __init__(self) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()

    def load_tokenizer(self, config: "ModelConfig", *, chatml: bool) -> "PreTrainedTokenizerBase":
        """The tokenizer with the tokens that `config` and ChatML add."""
        return self.tokenizer_with_new_ids(config, chatml=chatml)[0]

    def load_for_training(
        self, config: "ModelConfig", lora: "LoraConfig | None", *, settings: TrainingSettings
    ) -> LoadedModel:
        """The base with a trainable adapter, new or `config.adapter`; with neither, all weights train in float32."""
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        if settings.sharded:
            require_unscaled(dtype)
        adapted = lora is not None or config.adapter is not None
        loaded_in = dtype if adapted else torch.float32
        base, tokenizer, new_ids = self._base(config, loaded_in, settings.chatml, config.adapter)
        if settings.liger_kernel:
            use_liger_kernels(base)
        if config.adapter is not None:
            model: Any = with_adapter(base, config.adapter, trainable=True)
        elif lora is not None:
            model = add_adapter(base, lora, new_ids, settings.seed)
        else:
            model = base
        keep_trained_weights_in_float32(model)
        model.config.use_cache = False
        if settings.gradient_checkpointing:
            _checkpoint_layers(model)
        if settings.sharded:
            shard(model, device)
        else:
            model = model.to(device)
            start_from_weights(model, lora, settings.seed, lambda: _unquantised(config))
        packs = should_pack(settings.padding_free, model, dtype, settings.max_length)
        compiled = should_compile(settings.compile, model, device, settings.rows)
        routers = _routers(model, settings, compiled)
        if compiled:
            compile_layers(model, settings.rows_at_once, dtype, packed=packs)
        if settings.offload_embeddings:
            keep_embeddings_on_cpu(model)
        return LoadedModel(model, tokenizer, device, dtype, new_ids, compiled, packs, settings.sharded, routers)

    def load_for_inference(
        self, config: "ModelConfig", adapter: Path | None, *, chatml: bool, sharded: bool = False
    ) -> LoadedModel:
        """The base in its compute dtype, with the adapter on top if one is given.

        `sharded` gives each process of the run a share of the weights; all call it together.
        """
        device = training_device()
        dtype = compute_dtype(config.dtype, device)
        model, tokenizer, new_ids = self._base(config, dtype, chatml, adapter)
        if adapter is not None:
            model = with_adapter(model, adapter, trainable=False)
        model = model.eval().requires_grad_(False)
        if sharded:
            shard(model, device)
        else:
            model = model.to(device)
        return LoadedModel(model, tokenizer, device, dtype, new_ids, sharded=sharded)

    def _base(
        self, config: "ModelConfig", dtype: torch.dtype, chatml: bool, adapter: Path | None
    ) -> tuple[Any, Any, tuple[int, ...]]:
        """The model without its adapter, which is to go on it; its tokenizer, and the ids that were added to it."""
        tokenizer, new_ids = self.tokenizer_with_new_ids(config, chatml=chatml)
        if adapter is not None:
            require_adapter_fits(adapter, config)
        keywords: dict[str, Any] = {"dtype": dtype}
        if config.attention != "auto":
            keywords["attn_implementation"] = config.attention
        if config.quantization != "none":
            keywords["quantization_config"] = quantization_settings(config, dtype)
        with one_line_errors(config):
            loader: Any = AutoModelForCausalLM.from_pretrained
            files = model_files(config)
            model, loading = loader(
                files, **source_of(config), **keywords, use_safetensors=True, output_loading_info=True
            )
            require_all_weights(config.name, loading["missing_keys"], config.key)
        keep_layout(model)
        extend_model(model, new_ids)
        return model, tokenizer, new_ids

    def tokenizer_with_new_ids(self, config: "ModelConfig", *, chatml: bool) -> tuple[Any, tuple[int, ...]]:
        """The tokenizer, and the ids of the tokens that were added to it."""
        with one_line_errors(config):
            files = model_files(config)
            require_trust(config, files)
            tokenizer = AutoTokenizer.from_pretrained(files, **source_of(config))
        new_ids = add_tokens(tokenizer, config.added_tokens, chatml=chatml)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        return tokenizer, new_ids


def _unquantised(config: "ModelConfig") -> Any:
    """The base as it is stored, on the CPU."""
    with one_line_errors(config):
        loader: Any = AutoModelForCausalLM.from_pretrained
        return loader(model_files(config), **source_of(config), dtype="auto", use_safetensors=True)


def _routers(model: Any, settings: TrainingSettings, compiled: bool) -> RouterBalance | None:
    """What computes the load-balancing loss of the model; None if it is not to be counted."""
    found = router_balance(model, settings.router_loss)
    if found is not None and (settings.sharded or compiled):
        how = "parallel.kind: fsdp2" if settings.sharded else "training.compile: true"
        raise ModelError(
            f"training.router_loss: the loss of this model's routers, {found.coefficient:g} in its config unless set, "
            f"is not counted with {how}; set router_loss to 0, or train without"
        )
    return found


def _checkpoint_layers(model: Any) -> None:
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise ModelError(f"training.gradient_checkpointing: {first_line(error)}; set it to false") from error


def keep_trained_weights_in_float32(model: Any) -> None:
    """Cast trainable parameters to float32: Adam's steps on a weight near 1 are too small for bfloat16."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def with_adapter(model: Any, adapter: Path, *, trainable: bool) -> PeftModel:
    """`model` with the adapter from a folder that `require_adapter_fits` let pass; ModelError if PEFT does not."""
    try:
        # PEFT casts an adapter on a 16-bit base to float32, which only training needs.
        config = with_fused_layers(PeftConfig.from_pretrained(str(adapter)), model)
        with without_false_alarms():
            adapted = PeftModel.from_pretrained(
                model, adapter, config=config, is_trainable=trainable, autocast_adapter_dtype=trainable
            )
            # from_pretrained ignores missing and unexpected weights; loading again reports them.
            loading = adapted.load_adapter(
                str(adapter), "default", is_trainable=trainable, autocast_adapter_dtype=trainable
            )
    except (RuntimeError, ValueError, KeyError, SafetensorError) as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise ModelError(f"the adapter in {adapter} does not fit this model: {reason}") from error
    # A tied head is saved beside its embedding, so unexpected keys are errors only for LoRA's own weights.
    astray = [*loading.missing_keys, *(key for key in loading.unexpected_keys if ".lora_" in key)]
    if astray:
        raise ModelError(
            f"the adapter in {adapter} was made for another model: {len(astray)} of its weights are missing or "
            f"unexpected, such as {astray[0]}"
        )
    return adapted


def use_liger_kernels(model: Any) -> None:
    """Apply Liger's kernels in place to `model`, a transformers model that has no adapter yet.

    Liger replaces RoPE for all models of the architecture in this process.

    Raises:
        ModelError: Liger has no kernels for this architecture; Liger itself would not report that.
    """
    from liger_kernel.transformers.monkey_patch import (  # pyright: ignore[reportMissingImports]
        MODEL_TYPE_TO_APPLY_LIGER_FN,
    )
    from transformers.integrations.liger import apply_liger_kernel

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ModelError(
            f"training.liger_kernel: Liger has no kernels for models of type {model.config.model_type}; set it to false"
        )
    apply_liger_kernel(model, _KERNELS)


def model_files(config: "ModelConfig") -> str:
    """A folder or a Hugging Face id that transformers can load; a GGUF file is converted first."""
    location = locate_model(config.name, config.key)
    return str(converted_folder(Path(location.path))) if location.kind == "gguf" else location.path


def require_trust(config: "ModelConfig", files: str) -> None:
    """Announce that code shipped with the model will run, or, if that is not allowed, refuse a model that needs it.

    Raises:
        ModelError: transformers does not know the model's architecture, and the model's own code may not run.
    """
    if config.trust_remote_code:
        _announce_trust(config.key, config.name)
        return
    try:
        AutoConfig.from_pretrained(files, **source_of(config))
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{config.key}.name: {config.name} has a custom architecture, defined by Python code that comes with it; "
            f"read that code, and if you trust it set {config.key}.trust_remote_code: true"
        ) from None


@cache
def _announce_trust(key: str, name: str) -> None:
    console.print(f"{key}.trust_remote_code: Python code shipped with {on_one_line(name)} runs with your permissions")


def source_of(config: "ModelConfig") -> dict[str, Any]:
    """Arguments of every `from_pretrained` call, besides the files."""
    return {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}


@contextmanager
def one_line_errors(config: "ModelConfig") -> Iterator[None]:
    """Turn the many errors of the loaders into a one-line ModelError."""
    try:
        yield
    except ModelError:
        raise
    except (*_LOADERS_ERRORS, SafetensorError, StrictDataclassError, UnpicklingError) as error:
        reason = first_line(error)
        if "with `safetensors`" in reason:  # transformers then advises loading the pickles
            raise ModelError(f"{config.key}.name: {config.name} has no safetensors weights; {CONVERT}") from error
        if "trust_remote_code" in str(error):
            reason = f"it ships Python code, which runs only with {config.key}.trust_remote_code: true"
        raise ModelError(
            f"{config.key}.name: cannot load {config.name!r}: {reason} "
            "(without a hub, give a local folder, a .gguf file or smollm2-135m-instruct)"
        ) from error
