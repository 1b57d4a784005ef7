"""Start vLLM in this process without side effects on the rest of the process."""

import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from posttrain.base.extras import require_extra
from posttrain.base.text import first_line
from posttrain.errors import ConfigError, ModelError, ToolkitError
from posttrain.models.kernels.compiled_layers import has_compiler

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables for vLLM, unless the user has set them."""

_CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB for the KV cache; vLLM would take most of the memory
    "VLLM_USE_AOT_COMPILE": "0",  # vLLM cannot reload the compiled model it saves; torch has its own cache
}
"""Further variables, set only without a CUDA device."""

_ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The maximum adapter ranks that vLLM supports."""


@dataclass(frozen=True)
class VllmOptions:
    """How vLLM is set up.

    Attributes:
        dtype: of weights and computation, under torch's name: bfloat16, float16 or float32.
        max_length: maximum number of tokens of a prompt and its completion together.
        gpu_memory_utilization: share of a CUDA device for weights and KV cache; on a CPU, the KV cache has
            `VLLM_CPU_KVCACHE_SPACE` GiB.
        adapter_rank: highest rank of the adapters to be used; 0 if there are none.
        eager: True compiles nothing. False compiles the model, which takes 45 s on a CPU (6 s if it was compiled
            before) and makes it 1.4 times as fast. None compiles the model on CUDA; on a CPU it compiles only the
            sampler, if there is a C++ compiler.
        sleeps: whether the engine can give its memory on a CUDA device to others while it is not generating.
        seed_each: whether each completion is sampled with its own seed. If not, all completions of a call on a CPU
            share one seed, derived from all of theirs, and sampling is two to three times as fast: torch draws a number
            for each entry of the vocabulary, which is slow. CUDA always uses each completion's seed.
        revision: of a model given as a Hugging Face id instead of a folder.
        trust_remote_code: whether code that comes with the model may run.
    """

    dtype: str
    max_length: int
    gpu_memory_utilization: float = 0.9
    adapter_rank: int = 0
    eager: bool | None = None
    sleeps: bool = False
    seed_each: bool = True
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def compiles(self) -> bool:
        """Whether anything may be compiled."""
        return not self.eager and has_compiler()


def start_vllm(folder: Path, options: VllmOptions) -> Any:
    """Start an `LLMEngine` with the model in `folder`.

    In a process that belongs to a torch.distributed group, each rank has its own engine.

    Raises:
        ConfigError: vLLM is not installed, or does not support adapters of that rank.
        ModelError: vLLM cannot load the model, or the model cannot hold `max_length` tokens.
    """
    require_extra("vllm", "generation with vLLM")
    adapter_rank = _room_for(options.adapter_rank)
    for name, value in (_ENVIRONMENT | ({} if torch.cuda.is_available() else _CPU_ENVIRONMENT)).items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process
    with _process_kept(), vllm_errors(ModelError, f"vLLM cannot load {folder}"):
        from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportMissingImports]
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

        # vLLM reads its log level at its first import, which other code may have triggered.
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
        arguments = EngineArgs(
            model=str(folder),
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
            load_format="safetensors",  # never pickles
            dtype=options.dtype,  # pyright: ignore[reportArgumentType]
            max_model_len=options.max_length,
            gpu_memory_utilization=options.gpu_memory_utilization,
            enforce_eager=current_platform.is_cpu() if options.eager is None else options.eager,
            enable_prefix_caching=True,
            # On a CPU, vLLM 0.30 fails when it processes a part of a prompt whose completion has its own seed.
            enable_chunked_prefill=False if current_platform.is_cpu() and options.seed_each else None,
            enable_sleep_mode=options.sleeps,
            enable_lora=options.adapter_rank > 0,
            max_lora_rank=adapter_rank,  # pyright: ignore[reportArgumentType]
            max_loras=1,
            generation_config="vllm",  # not the folder's
            logprobs_mode="processed_logprobs",  # at the sampling temperature
            distributed_executor_backend="external_launcher" if _among_ranks() else None,
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        return LLMEngine.from_engine_args(arguments)


@contextmanager
def vllm_errors(kind: type[ToolkitError], what: str) -> Iterator[None]:
    """Turn vLLM's exceptions into an error of `kind` whose message begins with `what`."""
    from vllm.exceptions import VLLMError  # pyright: ignore[reportMissingImports]

    try:
        yield
    except ValidationError as error:
        raise kind(f"{what}: {error.errors()[0]['msg']}") from error
    except (VLLMError, ValueError, KeyError, RuntimeError, AssertionError, OSError) as error:
        reason = first_line(error)
        raise kind(f"{what}: {reason}") from error


def _room_for(rank: int) -> int:
    room = next((size for size in _ADAPTER_RANKS if size >= rank), None)
    if room is None:
        raise ConfigError(f"vLLM supports adapters up to rank {_ADAPTER_RANKS[-1]}, but this one has rank {rank}")
    return room


def _among_ranks() -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


@contextmanager
def _process_kept() -> Iterator[None]:
    """Restore the process state that vLLM changes, except for CPU memory, which it binds to one NUMA node.

    vLLM seeds all random numbers, calls or replaces `torch.set_num_threads`, and makes every child process load torch's
    OpenMP first (LD_PRELOAD).
    """
    preload, threads, set_threads = os.environ.get("LD_PRELOAD"), torch.get_num_threads(), torch.set_num_threads
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        os.environ.pop("LD_PRELOAD", None)
        if preload is not None:
            os.environ["LD_PRELOAD"] = preload
