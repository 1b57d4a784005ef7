"""The trained model's shape, built from its config alone, without loading weights.

On torch's meta device, where tensors have a shape but no memory, it shows how many weights a token is multiplied by,
and which of them are trained. With a few layers on a real device, it can be timed.
"""

import copy
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftConfig, get_peft_model
from peft.tuners.lora import ParamWrapper
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from posttrain.base.processes import process_count
from posttrain.config.sections.optim.optimizers import OPTIMIZERS, OwnOptimizer
from posttrain.errors import ModelError
from posttrain.models.adapters.experts import fused_parameters, has_experts
from posttrain.models.adapters.lora import add_adapter, with_fused_layers
from posttrain.models.backend import compute_dtype, training_device
from posttrain.models.hf import HfBackend, keep_trained_weights_in_float32, model_files, one_line_errors
from posttrain.models.kernels.compiled_layers import should_compile
from posttrain.models.kernels.packed_rows import is_tried, require_shape, why_not_by_config
from posttrain.models.load import choose_backend

if TYPE_CHECKING:
    from posttrain.config.sections.model import LoraConfig, ModelConfig
    from posttrain.config.sections.training import TrainingConfig

_MAPS = (nn.Linear, Conv1D)
# Weights with one scale in bitsandbytes' NF4, and scales with one scale in its double quantisation.
_BLOCK, _SCALES = 64, 256


@dataclass(frozen=True)
class Weights:
    """Numbers of frozen and trained weights."""

    frozen: int
    trained: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, and how it is trained.

    Attributes:
        in_layers: weights of the matrices of all layers, by which every token is multiplied.
        head: weights of the output head's matrices.
        attention: heads × head size, summed over the layers.
        everything: all weights, each counted once.
        weight_bytes: bytes of all weights as they are kept in training.
        state_bytes: bytes of the optimizer states.
        checkpointing, compiled: whether activations are recomputed, and whether layers are compiled with torch.compile.
        offloads: whether activations are kept elsewhere until the backward pass.
        shared_by: number of processes that have a share of the weights each; 1 if each has them all.
        summed_bytes: bytes of the sums of experts' weights and what an adapter adds to them, over all layers: each pass
            computes them, and keeps them unless it is recomputed.
        has_experts: whether a token is not multiplied by every weight.
    """

    layers: int
    in_layers: Weights
    head: Weights
    attention: int
    hidden: int
    vocabulary: int
    everything: Weights
    weight_bytes: int
    state_bytes: int
    checkpointing: bool = False
    compiled: bool = False
    offloads: bool = False
    shared_by: int = 1
    summed_bytes: int = 0
    has_experts: bool = False


@dataclass(frozen=True)
class TrainedModel:
    """The model that a config trains, and the dtype it computes in.

    Attributes:
        architecture: transformers' config of the model.
        new_ids: ids of the tokens that are added to the vocabulary.
        rows: rows trained on in total.
        shared_by: number of processes that have a share of the weights each; 1 if each has them all.
    """

    model: "ModelConfig"
    lora: "LoraConfig | None"
    training: "TrainingConfig"
    architecture: Any
    new_ids: tuple[int, ...]
    rows: int
    shared_by: int = 1

    @classmethod
    def of(cls, config: Any, steps: int) -> "TrainedModel":
        """The model as a run of `steps` steps would load it; `config` is that of any trainer.

        Raises:
            ModelError: it is loaded in a way that is not supported here.
        """
        backend = choose_backend(config.model)
        if not isinstance(backend, HfBackend):
            raise ModelError(f"the {backend.name} backend has its own layers, whose cost is unknown")
        _, new_ids = backend.tokenizer_with_new_ids(config.model, chatml=config.chat.template == "chatml")
        architecture = _architecture(config.model)
        architecture.vocab_size = max([architecture.vocab_size, *(new_id + 1 for new_id in new_ids)])
        rows = steps * config.training.rows_per_step
        shared_by = process_count() if config.parallel.shards else 1
        return cls(config.model, config.lora, config.training, architecture, new_ids, rows, shared_by)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that training computes in."""
        return compute_dtype(self.model.dtype, training_device())

    def build(self, device: str, layers: int | None = None, entries: int | None = None) -> Any:
        """Build the model with its adapter and made-up weights, in the dtypes of training.

        `layers` and `entries` replace its number of layers and the size of its vocabulary.
        """
        config = copy.deepcopy(self.architecture)
        config.vocab_size = entries or config.vocab_size
        if layers is not None:
            config.num_hidden_layers = layers
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:layers]
        adapted = self.lora is not None or self.model.adapter is not None
        with torch.device(device), torch.random.fork_rng():
            with no_init_weights():
                base = _base(self.model, config, self.dtype if adapted else torch.float32)
            base.tie_weights()
            for parameter in base.parameters():
                parameter.data.fill_(0.02)  # uninitialised values may be slow to compute with
            model = self._adapted(base)
        keep_trained_weights_in_float32(model)
        model.config.use_cache = False
        return model.train()

    def described(self) -> dict[str, object]:
        """What `build` depends on besides the device, as JSON values."""
        adapter = self.model.adapter
        return {
            "architecture": json.loads(self.architecture.to_json_string(use_diff=False)),
            "attention": self.model.attention,
            "dtype": str(self.dtype),
            "new_ids": self.new_ids,
            "lora": None if self.lora is None else self.lora.model_dump(mode="json"),
            "adapter": None if adapter is None else (adapter / "adapter_config.json").read_text(encoding="utf-8"),
        }

    def packs_rows(self, longest: int) -> bool:
        """Whether rows of up to `longest` tokens go through the model as one sequence, as far as its config tells."""
        tried = is_tried(self.training.padding_free, training_device()) and self.model.attention in ("auto", "sdpa")
        return tried and why_not_by_config(self.architecture, longest) is None

    def _adapted(self, base: Any) -> Any:
        if self.model.adapter is not None:
            adapter = PeftConfig.from_pretrained(str(self.model.adapter))
            adapter.inference_mode = False
            return get_peft_model(base, with_fused_layers(adapter, base))
        return base if self.lora is None else add_adapter(base, self.lora, self.new_ids, seed=0)


def require_packing(model: "ModelConfig", longest: int) -> None:
    """Refuse a model whose rows of up to `longest` tokens cannot go through it as one sequence, without loading it.

    Raises:
        ModelError: training with `batching: padding_free` would refuse it.
    """
    device = training_device()
    dtype = compute_dtype(model.dtype, device)
    with one_line_errors(model), torch.device("meta"):
        base = _base(model, _architecture(model), dtype)
    require_shape(base, dtype, device, longest)


def outline_with_experts(config: Any) -> Any:
    """The model that a trainer's config trains, on the meta device, if it has experts and is loaded by `hf`; else None.

    Raises:
        ModelError: its adapter cannot be made.
    """
    if not isinstance(choose_backend(config.model), HfBackend):
        return None
    trained = TrainedModel.of(config, steps=1)
    return trained.build("meta") if has_experts(trained.architecture) else None


def read_shape(trained: TrainedModel) -> ModelShape:
    """Count the weights of a model.

    Raises:
        ModelError: the model's matrices are not linear layers or experts, or the size of the optimizer's states is
            unknown.
    """
    states = _state_bytes(trained.training)
    model = trained.build("meta")
    experts = fused_parameters(model) if has_experts(trained.architecture) else {}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 2 and all(parameter is not each for each in experts.values()):
            raise ModelError(f"{name} belongs to a convolution, whose cost is unknown")
    config = model.config.get_text_config()
    maps = {name: each for name, each in model.named_modules() if isinstance(each, _MAPS) and _is_used(name)}
    head = {id(each) for each in model.get_output_embeddings().modules()}
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    everything, training = _count(model.parameters()), trained.training
    wanted = None if training.compile == "auto" else training.compile
    return ModelShape(
        layers=config.num_hidden_layers,
        in_layers=_count(each.weight for each in maps.values() if id(each) not in head),
        head=_count(each.weight for each in maps.values() if id(each) in head),
        attention=config.num_hidden_layers * config.num_attention_heads * size,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        everything=everything,
        weight_bytes=_bytes(model.parameters()) - _saved_by_quantising(trained.model.quantization, maps.values(), head),
        state_bytes=everything.trained * states,
        checkpointing=training.gradient_checkpointing,
        compiled=trained.shared_by == 1 and should_compile(wanted, model, training_device(), trained.rows),
        offloads=training.offload_activations,
        shared_by=trained.shared_by,
        summed_bytes=_bytes(each.get_param() for each in model.modules() if isinstance(each, ParamWrapper)),
        has_experts=bool(experts),
    )


def _architecture(model: "ModelConfig") -> Any:
    """Transformers' config of a model."""
    files, revision = model_files(model), model.revision or "main"
    return AutoConfig.from_pretrained(files, revision=revision, trust_remote_code=model.trust_remote_code)


def _base(model: "ModelConfig", architecture: Any, dtype: torch.dtype) -> Any:
    attention = {} if model.attention == "auto" else {"attn_implementation": model.attention}
    return AutoModelForCausalLM.from_config(
        architecture, dtype=dtype, trust_remote_code=model.trust_remote_code, **attention
    )


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _saved_by_quantising(quantization: str, maps: Iterable[Any], head: Collection[int]) -> int:
    """Bytes that bitsandbytes saves: it quantises the weights of all linear layers but the head, and no others."""
    weights = [each.weight for each in maps if id(each) not in head and not each.weight.requires_grad]
    if quantization == "none":
        return 0
    if quantization == "8bit":  # a byte for each weight, and a scale in float32 for each row
        return _bytes(weights) - sum(weight.numel() + 4 * weight.shape[0] for weight in weights)
    # Half a byte for each weight, a byte for the scale of each block, and a float32 for the scale of each 256 of these.
    blocks = [-(-weight.numel() // _BLOCK) for weight in weights]
    scales = sum(count + 4 * -(-count // _SCALES) for count in blocks)
    return _bytes(weights) - sum(-(-weight.numel() // 2) for weight in weights) - scales


def _state_bytes(training: "TrainingConfig") -> int:
    """Bytes of the optimizer's states and the average per trained weight."""
    if isinstance(training.optimizer, OwnOptimizer):
        raise ModelError("the size of the states of your own optimizer is unknown")
    momentum = 4 if training.optimizer == "sgd" and training.momentum else 0
    return OPTIMIZERS[training.optimizer].state_bytes + momentum + (4 if training.ema else 0)


def _is_used(name: str) -> bool:
    return "original_module" not in name.split(".")  # PEFT keeps it beside the copy that is trained


def _count(weights: Any) -> Weights:
    numbers = {True: 0, False: 0}
    for weight in weights:
        numbers[weight.requires_grad] += weight.numel()
    return Weights(numbers[False], numbers[True])
