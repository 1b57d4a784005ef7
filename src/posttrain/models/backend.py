"""The protocol of model backends, and what loading returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.errors import ModelError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.model import LoraConfig, ModelConfig


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and what was done to them.

    `compute_dtype` is what the forward pass runs in under autocast; trainable parameters are float32.
    `new_token_ids` are the vocabulary entries that the tokenizer had to learn. `compiled` is whether its decoder layers
    are trained through torch.compile.
    """

    model: Any
    tokenizer: "PreTrainedTokenizerBase"
    device: "torch.device"
    compute_dtype: "torch.dtype"
    new_token_ids: tuple[int, ...]
    compiled: bool = False

    def autocast(self) -> "AbstractContextManager[Any]":
        """Within it the model computes in its compute dtype."""
        import torch

        return torch.autocast(
            self.device.type, dtype=self.compute_dtype, enabled=self.compute_dtype is not torch.float32
        )


class Backend(Protocol):
    """Loads models. It is chosen before transformers is imported, because unsloth rewrites classes of transformers."""

    name: str

    def load_tokenizer(self, config: "ModelConfig", *, chatml: bool) -> "PreTrainedTokenizerBase":
        """Only the tokenizer, with every token added that training would add."""
        ...

    def load_for_training(
        self, config: "ModelConfig", lora: "LoraConfig | None", *, settings: "TrainingSettings"
    ) -> LoadedModel:
        """The base with a new adapter, with `config.adapter` to go on from, or all weights trainable."""
        ...

    def load_for_inference(self, config: "ModelConfig", adapter: Path | None, *, chatml: bool) -> LoadedModel:
        """The base, with the adapter in `adapter` on top where one is given; nothing is trainable."""
        ...


@dataclass(frozen=True)
class TrainingSettings:
    """The parts of a training config that change how a model is loaded.

    `chatml` says whether the ChatML control tokens must be in the vocabulary; `max_length` is in tokens;
    `liger_kernel` is for the hf backend, as unsloth has kernels of its own, and so is `compile`, of which None means
    where it is worth it for training on `rows` in all, `rows_at_once` of them in the model at once.
    """

    chatml: bool
    max_length: int
    gradient_checkpointing: bool
    seed: int
    liger_kernel: bool = False
    compile: bool | None = False
    rows: int = 0
    rows_at_once: int = 1


def training_device() -> "torch.device":
    """The accelerator that torch sees first, else the CPU."""
    import torch

    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def compute_dtype(wanted: str, device: "torch.device") -> "torch.dtype":
    """`wanted` is a dtype's name or `auto`.

    That is bfloat16 where `device` computes it fast, float16 on CUDA devices before Ampere, which do not, and else
    float32. A trainer scales the loss of float16, whose small gradients would be 0 otherwise.

    Raises:
        ModelError: float16 on a CPU, whose kernels are slow and whose gradients underflow.
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
    # AVX512-BF16 or AMX: measured 5 times the matrix-product rate of float32; without them it is emulated.
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
