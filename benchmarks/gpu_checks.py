"""The parts of `gpu.py` that measure no speed: each returns one line on what it found, or raises."""

import argparse
import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_material import write_jsonl, write_model

Found = dict[str, Any]
_GIB = 2**30


def dtype_and_attention(options: argparse.Namespace) -> Found:
    """What `auto` resolves to on this device."""
    from posttrain.config.sections.model import LoraConfig, ModelConfig
    from posttrain.models.backend import TrainingSettings
    from posttrain.models.hf import HfBackend

    settings = TrainingSettings(chatml=True, max_length=options.length, gradient_checkpointing=False, seed=0)
    loaded = HfBackend().load_for_training(ModelConfig(name=str(options.model)), LoraConfig(), settings=settings)
    base = loaded.model.get_base_model()
    trained = {str(each.dtype) for each in loaded.model.parameters() if each.requires_grad}
    frozen = {str(each.dtype) for each in loaded.model.parameters() if not each.requires_grad}
    attention = base.config._attn_implementation
    return {
        "note": f"computes in {loaded.compute_dtype} on {loaded.device}, attention {attention}, "
        f"adapter {', '.join(trained)}, base {', '.join(frozen)}"
    }


def out_of_memory(options: argparse.Namespace) -> Found:
    """A run that does not fit in little memory: its error must say so, and advise changes."""
    from posttrain.config.load import load_config
    from posttrain.errors import RunError
    from posttrain.sft.config import SFTConfig
    from posttrain.sft.train import train

    model = write_model(options.folder / "model", "tiny")
    # Eager attention needs 2 heads × 16,000² × 2 bytes, about 1 GiB, for each of 16 rows at once.
    rows = [{"prompt": "one ", "completion": f"{number} " + "two three " * 1800} for number in range(16)]
    config = {
        "model": {"name": str(model), "backend": "hf", "attention": "eager"},
        "chat": {"max_length": 32000},
        "datasets": {"rows": {"path": str(write_jsonl(options.folder / "long.jsonl", rows))}},
        "stages": [{"name": "all", "until_step": 1, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 16, "micro_batch_size": 16},
    }
    path = options.folder / "oom.yaml"
    path.write_text(json.dumps(config))
    try:
        with _little_memory():
            train(load_config(path, SFTConfig), "oom")
    except RunError as error:
        first, *rest = str(error).splitlines()
        changes = [line.strip().split(" (")[0] for line in rest if line.startswith("  ")]
        if not first.startswith("out of memory") or not changes:
            raise
        return {"note": f"{first}. Advised: {'; '.join(changes)}"}
    raise AssertionError("it fitted into memory")


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """Limit memory to 6 GiB of the CUDA device, or to 6 GiB of address space beyond what is in use."""
    import psutil
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, 6 * _GIB / total))
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 6 * _GIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def adapter_and_weights_agree(options: argparse.Namespace) -> Found:
    """Greedy answers from vLLM with the adapter on top, and with the adapter merged into the weights."""
    from posttrain.inference.weight_sync import AdapterAlone, MergedWeights

    loaded = _with_a_random_adapter(options)
    one = _answers(options, AdapterAlone(loaded.model), options.folder / "adapter")
    other = _answers(options, MergedWeights(loaded), options.folder / "weights")
    same = sum(a == b for a, b in zip(_tokens(one), _tokens(other), strict=True))
    difference = max(abs(a - b) for a, b in zip(_first_logprobs(one), _first_logprobs(other), strict=True))
    if difference > 0.1:
        raise AssertionError(f"the first tokens' log-probabilities differ by up to {difference:.3f} nats")
    return {
        "note": f"{same} of {len(one)} answers are the same token for token; the first tokens' log-probabilities "
        f"differ by {difference:.4f} nats at most"
    }


def asleep(options: argparse.Namespace) -> Found:
    """How much device memory vLLM frees while it sleeps, and whether it answers the same after waking up."""
    import torch

    from posttrain.inference.weight_sync import MergedWeights

    folder = options.folder / "weights"
    engine = _engine(options, MergedWeights(_with_a_random_adapter(options)), folder, sleeps=True)
    free = [torch.cuda.mem_get_info()[0]]  # asleep, as when created
    engine.load(folder, 0)
    free.append(torch.cuda.mem_get_info()[0])  # awake
    before = _ask(engine)
    free.append(torch.cuda.mem_get_info()[0])  # asleep again
    after = _ask(engine)
    engine.close()
    if _tokens(before) != _tokens(after) or free[1] >= min(free[0], free[2]):
        turns = ", ".join(f"{each / _GIB:.1f} GiB" for each in free)
        raise AssertionError(f"it answers otherwise, or gives nothing back: asleep, awake, asleep {turns} were free")
    return {"note": f"{(free[2] - free[1]) / _GIB:.1f} GiB are free while it sleeps, and it answers as before"}


def _with_a_random_adapter(options: argparse.Namespace) -> Any:
    """The model with an adapter that changes its answers; a new adapter, with B = 0, would not."""
    import torch

    from posttrain.config.sections.model import LoraConfig, ModelConfig
    from posttrain.models.backend import TrainingSettings
    from posttrain.models.hf import HfBackend

    settings = TrainingSettings(chatml=True, max_length=options.length, gradient_checkpointing=False, seed=0)
    loaded = HfBackend().load_for_training(ModelConfig(name=str(options.model)), LoraConfig(), settings=settings)
    torch.manual_seed(0)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    return loaded


def _engine(options: argparse.Namespace, weights: Any, folder: Path, *, sleeps: bool = False) -> Any:
    """vLLM, started with all weights from `folder`, or with the base if they are an adapter."""
    from transformers import AutoTokenizer

    from posttrain.inference.vllm import VllmEngine
    from posttrain.inference.vllm_load import VllmOptions
    from posttrain.models.backend import compute_dtype, training_device

    weights.write_once(folder)
    weights.write(folder)
    end = AutoTokenizer.from_pretrained(options.model).eos_token_id
    dtype = str(compute_dtype("auto", training_device())).removeprefix("torch.")
    room = {"gpu_memory_utilization": 0.4, "adapter_rank": weights.adapter_rank, "sleeps": sleeps}
    started_with = options.model if weights.adapter_rank else folder
    return VllmEngine(started_with, frozenset({end}), VllmOptions(dtype, options.length, **room))


def _answers(options: argparse.Namespace, weights: Any, folder: Path) -> Any:
    engine = _engine(options, weights, folder)
    try:
        engine.load(folder, 1)
        return _ask(engine)
    finally:
        engine.close()


def _ask(engine: Any) -> Any:
    from posttrain.inference.engine import GenerationRequest, Sampling

    requests = [GenerationRequest(tuple(range(20 + number, 60 + number))) for number in range(16)]
    return engine.complete(requests, Sampling(max_new_tokens=32, logprobs=True))


def _tokens(answers: Any) -> list[tuple[int, ...]]:
    return [answers[key].token_ids for key in sorted(answers)]


def _first_logprobs(answers: Any) -> list[float]:
    return [answers[key].logprobs[0] for key in sorted(answers)]
