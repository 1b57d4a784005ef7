"""Compile a model's decoder layers with torch.compile, for training on CPUs.

Everything except matrix products then runs as one loop instead of one pass over memory per operation: forward and
backward of SmolLM2's layers take 0.68 of the time. All layers are alike, so one is compiled, for tensors of any size;
the compiler caches its output on disk for the next start.
"""

import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from posttrain.base.cache import cache_dir
from posttrain.base.console import console
from posttrain.errors import ModelError
from posttrain.models.adapters.experts import has_experts
from posttrain.models.backend import autocast_to
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.packing import pack
from posttrain.models.quantised import is_quantised

# Compiling takes 40 seconds, which training SmolLM2-135M wins back after 300 rows of 200 tokens.
_WORTH_IT = 1000 * 135_000_000
# The compiler lays out its loops for the first shape it sees: the same in every run, so that runs give the same bits.
_FIRST_TOKENS = 128


def should_compile(wanted: bool | None, model: Any, device: torch.device, rows: int) -> bool:
    """Whether to compile: `wanted` if given, else whether training on `rows` rows is worth the wait.

    Raises:
        ModelError: compilation is wanted, and there is no C++ compiler.
    """
    if wanted is False:
        return False
    if wanted is None:
        work = rows * sum(parameter.numel() for parameter in model.parameters())
        return device.type == "cpu" and has_compiler() and not _is_unsuited(model) and work >= _WORTH_IT
    if device.type == "cpu" and not has_compiler():
        raise ModelError(
            "training.compile: true needs a C++ compiler, but neither CXX nor g++ (on a Mac clang++) points to one; "
            "install one (Debian: apt install g++), or set it to false"
        )
    return True


def compile_layers(model: Any, rows_at_once: int, dtype: torch.dtype, *, packed: bool = False) -> None:
    """Compile the decoder layers of `model` in place, and run `rows_at_once` rows through them once to get them ready.

    `dtype` is the dtype that training computes in; `packed` says whether rows go through the model as one sequence.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    device = next(model.parameters()).device
    if device.type == "cpu" and model.config._attn_implementation == "sdpa":
        recomputed_attention.use_in(model)
    console.print("compiling the model's layers: about 40 seconds, less if compiled before")
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True)
    _train_once(model, rows_at_once, dtype, packed=packed)


def as_written(model: Any) -> AbstractContextManager[Any]:
    """Context manager in which the layers of `model` run uncompiled.

    For passes without gradient, with a cache or of many shapes: the compiler would compile another program for each
    kind, and gives up on a layer that has too many.
    """
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


def is_compiled(model: Any) -> bool:
    """Whether `compile_layers` was called with `model`."""
    layers = (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
    return any(layer._compiled_call_impl is not None for layer in layers)


def has_compiler() -> bool:
    """Whether the C++ compiler that torch's compiler looks for is installed."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None


def _train_once(model: Any, rows: int, dtype: torch.dtype, *, packed: bool) -> None:
    device = next(model.parameters()).device
    ids, inputs = torch.zeros((rows, _FIRST_TOKENS), dtype=torch.long, device=device), {}
    if packed:
        whole = pack(ids, ids)
        ids, inputs = whole.input_ids, whole.inputs()
    was_training = model.training
    model.train()
    with torch.random.fork_rng(), autocast_to(dtype, device):
        model(input_ids=ids, use_cache=False, logits_to_keep=1, **inputs).logits.float().sum().backward()
    model.zero_grad()
    model.train(was_training)


def _is_unsuited(model: Any) -> bool:
    """Whether it has experts, whose tokens are not known in advance, or quantised weights, which nobody timed."""
    return is_quantised(model) or has_experts(model.config)
