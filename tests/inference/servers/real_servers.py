"""Real servers with the tiny model, and what transformers says about their answers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.servers.contract_server import recorded
from inference.servers.record_answers import answers, shape
from posttrain.config.sections.servers import ServerKind, ServersConfig
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason, decode, derive_seed
from posttrain.inference.servers.open import open_server_engine
from posttrain.inference.servers.pool import ServerPool
from posttrain.inference.servers.wire import Needs

END = 2
WARM = Sampling(20, temperature=0.7, logprobs=True)
# Longer than the blocks in which vLLM caches a prompt: a stale cache would show.
LONG = tuple(5 + (7 * at) % 370 for at in range(300))

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
"""Of the servers."""
_COMMANDS = {
    "vllm-server": "-m vllm.entrypoints.openai.api_server --enforce-eager",
    "sglang-server": "-m sglang.launch_server --device cpu --attention-backend torch_native --sampling-backend pytorch "
    "--disable-cuda-graph --skip-server-warmup --mem-fraction-static 0.1 --max-total-tokens 8192",
}


def real_python(kind: ServerKind) -> str:
    """The interpreter that has the server; skips the test if there is none."""
    variable = f"{kind.partition('-')[0].upper()}_SERVER_PYTHON"
    if variable not in os.environ:
        pytest.skip("starts a real server: make test-engines")
    return os.environ[variable]


def real_command(kind: str) -> list[str]:
    """The command of a real server, to which `servers.start` adds; skips as `real_python` does."""
    return [real_python(kind), *_COMMANDS[kind].split()]


@contextmanager
def real_engine(kind: ServerKind, model: Path, folder: Path, *, rank: int = 0, count: int = 1) -> Iterator[ServerPool]:
    """Start servers with `model`, for adapters of `rank` or else for whole weights."""
    command = real_command(kind)
    config = ServersConfig.model_validate({"start": {"command": command, "count": count, "start_seconds": 400}})
    needs = Needs(str(model), dtype="float32", max_length=512, end_ids=frozenset([END]), adapter_rank=rank)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        engine = open_server_engine(kind, config, needs, folder)
    try:
        yield engine
    finally:
        engine.close()


def groups(count: int, size: int) -> list[GenerationRequest]:
    """Prompts of 40 tokens, each with `size` seeds."""
    return [
        GenerationRequest(LONG[row : row + 40], tuple(derive_seed(row, sample) for sample in range(size)))
        for row in range(count)
    ]


def loaded(folder: Path) -> Any:
    """The model in `folder`, by transformers."""
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@torch.no_grad()
def scores(model: Any, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """log p of ids[1:] at the temperature."""
    given = torch.tensor([ids])
    log_p = (model(given).logits[0, :-1] / temperature).log_softmax(-1)
    return log_p.gather(-1, given[0, 1:, None])[:, 0].tolist()


def write_changed(folder: Path, into: Path, seed: int) -> Path:
    """The model with all weights changed by half their spread, the embedding and so the tied head too."""
    model, generator = loaded(folder), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.std() / 2 if parameter.dim() > 1 else torch.tensor(0.1)
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(into)
    return into


def require_of_model(found: dict[Key, Completion], asked: list[GenerationRequest], model: Any) -> None:
    """Each completion ends as it says, and its log-probabilities are the model's at the sampling temperature."""
    assert list(found) == [(row, sample) for row, request in enumerate(asked) for sample in range(request.n)]
    for (row, _), made in found.items():
        prompt = asked[row].prompt_ids
        wanted = scores(model, [*prompt, *made.token_ids], WARM.temperature)[len(prompt) - 1 :]
        assert made.logprobs == pytest.approx(wanted, abs=2e-3)
        assert (made.token_ids[-1] == END) == (made.stop_reason.value == "end")
        assert END not in made.token_ids[:-1]
        assert made.stop_reason.value == "end" or len(made.token_ids) == WARM.max_new_tokens


def require_stops(engine: ServerPool, model: Path) -> None:
    """A completion that ends at a stop text contains it once its last token has come, and not before."""
    tokenizer, stop = AutoTokenizer.from_pretrained(model), ("e", "a")
    sampling = replace(WARM, max_new_tokens=60, stop=stop)
    stopped = [made for made in engine.complete(groups(2, 4), sampling).values() if made.stop_reason is StopReason.STOP]
    assert stopped
    for made in stopped:
        *before, text = (decode(tokenizer, made.token_ids[:count]) for count in range(len(made.token_ids) + 1))
        assert any(each in text for each in stop)
        assert not any(each in earlier for each in stop for earlier in before)
        assert made.logprobs is not None and len(made.logprobs) == len(made.token_ids)


def require_recorded_shape(kind: str, private: Path, model: Path) -> None:
    """The server answers with the fields, and types of fields, that the contract server has from the record.

    Args:
        private: the folder of the running server's own files.
    """
    (file,) = private.glob("*.yaml")
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    guards = [each for each in psutil.Process().children() if "posttrain.base.guard" in each.cmdline()]
    key = guards[0].environ()["VLLM_API_KEY"]
    url, headers = f"http://127.0.0.1:{settings['port']}", {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        found = answers(kind, client, model, None)
    wanted = recorded(kind)
    if kind == "vllm-server":  # the record's server takes adapters, this one does not
        found["server_info"]["vllm_config"]["lora_config"] = wanted["server_info"]["vllm_config"]["lora_config"]
    changed = [name for name in found if shape(found[name]) != shape(wanted[name])]
    assert not changed, f"the server answers in another form than the record: {changed}"
