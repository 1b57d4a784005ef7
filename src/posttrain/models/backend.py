"""The protocol of model backends, and what loading returns."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.base.console import console
from posttrain.errors import ModelError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.model import LoraConfig, ModelConfig
    from posttrain.models.kernels.router_balance import RouterBalance


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and how they were loaded.

    `compute_dtype` is the dtype of the forward pass under autocast; trainable parameters are float32. `new_token_ids`
    are the ids of the tokens that were added to the tokenizer. `compiled` says whether the decoder layers are trained
    through torch.compile, `padding_free` whether the rows of a micro-batch go through the model as one sequence,
    `sharded` whether each process of the run has only a share of the weights. `routers` computes the load-balancing
    loss of a model with experts if training counts it.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    device: "torch.device"
    compute_dtype: "torch.dtype"
    new_token_ids: tuple[int, ...]
    compiled: bool = False
    padding_free: bool = False
    sharded: bool = False
    routers: "RouterBalance | None" = None

    def autocast(self) -> "AbstractContextManager[Any]":
        """Context manager in which the model computes in its compute dtype."""
        # Casts of gathered weights that are kept until the end of the pass would be all weights in the end.
        return autocast_to(self.compute_dtype, self.device, keep_casts=not self.sharded)


class Backend(Protocol):
    """Loads models. Choose it before importing transformers, because unsloth rewrites classes of transformers."""

    name: str

    def load_tokenizer(self, config: "ModelConfig", *, chatml: bool) -> "PreTrainedTokenizerBase":
        """Load only the tokenizer, with every token that training would add."""
        ...

    def load_for_training(
        self, config: "ModelConfig", lora: "LoraConfig | None", *, settings: "TrainingSettings"
    ) -> LoadedModel:
        """The base with a new adapter, with `config.adapter` to continue from, or with all weights trainable."""
        ...

    def load_for_inference(self, config: "ModelConfig", adapter: Path | None, *, chatml: bool) -> LoadedModel:
        """The base, with the adapter in `adapter` on top if given; nothing is trainable."""
        ...


@dataclass(frozen=True)
class TrainingSettings:
    """The parts of a training config that change how a model is loaded.

    `chatml` says whether the ChatML control tokens must be in the vocabulary; `max_length` is in tokens. What follows
    `seed` is for the hf backend only, since unsloth has kernels of its own. `compile` None means to compile if that is
    worth it for training on `rows` rows in total, `rows_at_once` of them in the model at a time; `padding_free` None
    means to train without padding on a CPU if the model can; `sharded` gives each process of the run a share of the
    weights; `router_loss` is the coefficient of the load-balancing loss, None that of the model's config.
    """

    chatml: bool
    max_length: int
    gradient_checkpointing: bool
    seed: int
    offload_embeddings: bool = False
    liger_kernel: bool = False
    compile: bool | None = False
    padding_free: bool | None = False
    rows: int = 0
    rows_at_once: int = 1
    sharded: bool = False
    router_loss: float | None = 0.0


def training_device() -> "torch.device":
    """The accelerator that torch sees first, else the CPU."""
    import torch

    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


_OTHER_ACCELERATORS = {"mps": "an Apple GPU (MPS)", "xpu": "an Intel GPU (XPU)", "npu": "an Ascend NPU"}


def unused_accelerator(found: "torch.device | None") -> str | None:
    """What torch found as this machine's accelerator, in words, if models do not compute on it here."""
    if found is None or found.type in ("cuda", "cpu"):
        return None
    return _OTHER_ACCELERATORS.get(found.type, f"an accelerator of type {found.type}")


@cache
def tell_of_unused_accelerator() -> None:
    """Say once that this machine's accelerator is not used, if it is none that `training_device` takes."""
    import torch

    if name := unused_accelerator(torch.accelerator.current_accelerator(check_available=True)):
        console.print(f"this machine has {name}, which is not used: models compute on the CPU")


def autocast_to(
    dtype: "torch.dtype", device: "torch.device", *, keep_casts: bool = True
) -> "AbstractContextManager[Any]":
    """Context manager in which models on `device` compute in `dtype`.

    `keep_casts`: whether a float32 weight that is used again is cast once.
    """
    import torch

    enabled = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=keep_casts)


def compute_dtype(wanted: str, device: "torch.device") -> "torch.dtype":
    """The dtype to compute in; `wanted` is a dtype's name or `auto`.

    `auto` is bfloat16 if `device` computes it fast, else float16 on CUDA devices (those before Ampere), else float32.
    Trainers scale the float16 loss, because small gradients would become 0 otherwise.

    Raises:
        ModelError: float16 on a CPU, where its kernels are slow and gradients underflow.
    """
    import torch

    if wanted == "auto":
        if _fast_bfloat16(device):
            return torch.bfloat16
        return torch.float16 if device.type == "cuda" else torch.float32
    if wanted == "float16" and device.type == "cpu":
        raise ModelError("model.dtype: float16 is for CUDA devices; use auto, bfloat16 or float32 on a CPU")
    return getattr(torch, wanted)


def _fast_bfloat16(device: "torch.device") -> bool:
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # AVX512-BF16 and AMX multiply matrices 5 times as fast as float32 (measured); without them, bfloat16 is emulated.
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
