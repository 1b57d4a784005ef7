"""What every backend gives back, and the few verbs it must have."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from transformers import PreTrainedTokenizerBase

    from posttrain.config.sections.lora import LoraConfig
    from posttrain.config.sections.model import ModelConfig


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
