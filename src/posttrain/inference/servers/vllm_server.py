"""The wire of one vLLM server: its OpenAI endpoint with token ids, and its endpoints for weights.

Checked against vLLM 0.30.0. Weights go through folders: an adapter is loaded under a new name each time, since vLLM
caches prompts by the name; all weights are reloaded while the server is paused, and its cached prompts are dropped.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.base.http import PassingError
from posttrain.errors import ConfigError, ServerError
from posttrain.inference.engine import Completion, Sampling, StopReason
from posttrain.inference.servers.link import Link, RefusedError
from posttrain.inference.servers.wire import Needs, StaleError, command_line, completion, end_reason, numbers

_QUICK_SECONDS = 30.0
_ALIVE_SECONDS = 5.0

WORKER_FOLDER = Path(__file__).with_name("vllm_worker")
"""To be on the server's PYTHONPATH on a CPU."""
WORKER = "posttrain_vllm_worker.HeadPacker"

_ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def settings(needs: Needs) -> dict[str, Any]:
    """The options that a server needs, without the model, under the names of its command line."""
    plain = {
        "dtype": needs.dtype,
        "max-model-len": needs.max_length,
        "logprobs-mode": "processed_logprobs",  # at the sampling temperature
        "generation-config": "vllm",  # not the model folder's
    }
    if needs.weights != "adapter":
        return plain
    return plain | {"enable-lora": True, "max-loras": 1, "max-lora-rank": room_for(needs.adapter_rank)}


def environment(needs: Needs) -> dict[str, str]:
    """The variables that a server needs besides its key."""
    names = {"adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "folder": "VLLM_SERVER_DEV_MODE"}
    return {names[needs.weights]: "1"} if needs.weights in names else {}


def room_for(rank: int) -> int:
    """The smallest maximum rank that vLLM knows and that suffices; ConfigError if there is none."""
    room = next((size for size in _ADAPTER_RANKS if size >= rank), None)
    if room is None:
        raise ConfigError(f"vLLM supports adapters up to rank {_ADAPTER_RANKS[-1]}, but this one has rank {rank}")
    return room


class VllmServer:
    """A `Server` that runs vLLM."""

    def __init__(self, url: str, key: str | None, needs: Needs) -> None:
        self._link = Link("vLLM", url, key)
        self._needs = needs
        self._base = ""
        self._packs_heads = False
        self._adapter: str | None = None
        self.place = self._link.place

    async def check(self) -> str:
        """As in `Server`."""
        version = str(_field(await self._link.get("/version", _QUICK_SECONDS), "version"))
        models = _field(await self._link.get("/v1/models", _QUICK_SECONDS), "data")
        base = next(model for model in models if model.get("parent") is None)
        self._base = str(base["id"])
        self._require_room(base.get("max_model_len"))
        endpoints = _field(await self._link.get("/openapi.json", _QUICK_SECONDS), "paths")
        if self._needs.weights == "adapter" and "/v1/load_lora_adapter" not in endpoints:
            raise self._unfit("takes no new adapters: its environment lacks VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
        if self._needs.weights == "folder" and "/collective_rpc" not in endpoints:
            raise self._unfit("takes no new weights: its environment lacks VLLM_SERVER_DEV_MODE=1")
        if "/server_info" in endpoints:
            info = await self._link.get("/server_info?config_format=json", _QUICK_SECONDS)
            self._require_settings(_field(info, "vllm_config"))
        return f"vLLM {version}"

    async def require_closed(self) -> None:
        """As in `Server`. vLLM's own key protects only the paths below /v1; a proxy can close the others."""
        if await self._link.answers_without_key("/is_paused", _QUICK_SECONDS):
            raise ConfigError(
                f"{self.place} takes commands without its key, as vLLM does: anyone who reaches it can replace the "
                "model. Put a proxy in front of it (docs/servers.md), or say servers.insecure_network: true"
            )

    async def is_alive(self) -> bool:
        """As in `Server`."""
        return await self._link.is_alive("/health", _ALIVE_SECONDS)

    async def load(self, folder: str, label: str) -> None:
        """As in `Server`."""
        if self._needs.weights == "adapter":
            await self._load_adapter(folder, label)
        else:
            await self._reload(folder, label)

    async def generate(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str | None) -> Completion:
        """As in `Server`."""
        body = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": seed,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._needs.end_ids),
            "ignore_eos": True,  # the tokenizer's EOS; ours are above
            "skip_special_tokens": False,
        }
        if sampling.logprobs:
            body["logprobs"] = 0  # only the sampled token's
        choice = await self._complete(prompt_ids, body, label)
        ids, reason = choice.get("token_ids"), choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise PassingError(f"{self.place} ended a completion with {reason!r}")
        ended = StopReason.LENGTH
        if reason == "stop":
            ended = end_reason(self.place, ids, choice.get("stop_reason"), self._needs.end_ids)
        return completion(self.place, ids, (choice.get("logprobs") or {}).get("token_logprobs"), ended, sampling)

    async def score(self, ids: Sequence[int], label: str | None) -> list[float]:
        """As in `Server`. vLLM computes the whole prompt for this, without its cache."""
        # Prompt log-probabilities ignore the temperature.
        choice = await self._complete(ids, {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}, label)
        found = choice.get("prompt_logprobs")
        if not isinstance(found, list) or len(found) != len(ids):
            raise ServerError(f"{self.place} returned no log-probabilities of a prompt")
        values = [(of or {}).get(str(token), {}).get("logprob") for token, of in zip(ids[1:], found[1:], strict=True)]
        return numbers(self.place, values, len(ids) - 1)

    async def close(self) -> None:
        """As in `Server`."""
        await self._link.close()

    async def _complete(self, prompt_ids: Sequence[int], body: Mapping[str, Any], label: str | None) -> dict[str, Any]:
        by_adapter = label is not None and self._needs.weights == "adapter"
        model = label if by_adapter else self._base
        request = {**body, "model": model, "prompt": [list(prompt_ids)], "return_token_ids": True}
        try:
            answer = await self._link.post("/v1/completions", request, self._needs.request_seconds)
        except RefusedError as error:
            if error.status == 404 and by_adapter:
                raise StaleError(f"{self.place} no longer has the adapter {label}") from None
            raise
        choices = _field(answer, "choices")
        if len(choices) != 1 or choices[0].get("prompt_token_ids") != list(prompt_ids):
            raise ServerError(f"{self.place} did not answer the prompt that was sent; is a proxy changing requests?")
        if answer.get("model") != model:
            raise StaleError(f"{self.place} answered with the model {answer.get('model')!r} instead of {model!r}")
        if self._needs.weights == "folder" and label is not None:
            # After the answer: a server that was restarted meanwhile has forgotten the label.
            await self._require_label(label)
        return choices[0]

    async def _require_label(self, label: str) -> None:
        found = _field(await self._link.get("/weight_info", _QUICK_SECONDS), "weight_version")
        if found != label:
            raise StaleError(f"{self.place} has the weights {found!r} instead of {label!r}")

    async def _load_adapter(self, folder: str, label: str) -> None:
        body = {"lora_name": label, "lora_path": folder}
        try:
            await self._link.post("/v1/load_lora_adapter", body, self._needs.control_seconds)
        except RefusedError as error:
            # 400 also if an earlier try succeeded but its answer was lost.
            if error.status != 400 or folder not in await self._adapters(label):
                raise
        if folder not in await self._adapters(label):
            raise ServerError(f"{self.place} does not list the adapter {label}, which it was given")
        if self._adapter not in (None, label) and await self._adapters(self._adapter):
            await self._link.post("/v1/unload_lora_adapter", {"lora_name": self._adapter}, _QUICK_SECONDS)
        self._adapter = label

    async def _adapters(self, label: str) -> list[str]:
        """The paths of the adapters with that name: one or none."""
        models = _field(await self._link.get("/v1/models", _QUICK_SECONDS), "data")
        return [str(model.get("root")) for model in models if model["id"] == label]

    async def _reload(self, folder: str, label: str) -> None:
        """Replace all weights. If that fails, the server stays paused: its next request would end it."""
        seconds = self._needs.control_seconds
        await self._link.post("/pause?mode=wait", None, seconds)
        await self._link.post("/update_weight_version", {"new_version": f"{label} (incomplete)"}, _QUICK_SECONDS)
        arguments = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._link.post("/collective_rpc", arguments, seconds)
        if self._packs_heads:
            await self._link.post("/collective_rpc", {"method": "pack_heads"}, seconds)
        # While requests run, vLLM keeps its cache and says so only in the body.
        for _ in range(20):
            if _field(await self._link.post("/reset_prefix_cache", None, _QUICK_SECONDS), "success"):
                break
            await asyncio.sleep(0.1)
        else:
            raise PassingError(f"{self.place} cannot clear its prefix cache; does somebody else use it?")
        await self._link.post("/update_weight_version", {"new_version": label}, _QUICK_SECONDS)
        await self._link.post("/resume", None, _QUICK_SECONDS)
        await self._require_label(label)

    def _require_room(self, longest: Any) -> None:
        if not isinstance(longest, int) or longest < self._needs.max_length:
            raise self._unfit(f"takes {longest} tokens, but the run needs {self._needs.max_length}")

    def _require_settings(self, config: Mapping[str, Any]) -> None:
        model, lora = _field(config, "model_config"), config.get("lora_config")
        wanted = settings(self._needs)
        for option in ("logprobs-mode", "generation-config", "dtype"):
            found = str(model.get(option.replace("-", "_"))).removeprefix("torch.")
            if found != wanted[option]:
                raise self._unfit(f"runs with --{option} {found}, but the run needs {wanted[option]}")
        if self._needs.weights == "adapter" and (lora is None or lora["max_lora_rank"] < self._needs.adapter_rank):
            raise self._unfit("takes no adapters" if lora is None else f"takes rank {lora['max_lora_rank']} at most")
        on_cpu = (config.get("device_config") or {}).get("device") == "cpu"
        extension = (config.get("parallel_config") or {}).get("worker_extension_cls")
        # Calling a method that the workers lack would end the server.
        self._packs_heads = extension == WORKER
        if self._needs.weights == "folder" and on_cpu and not self._packs_heads:
            raise self._unfit(
                "runs on a CPU, where vLLM keeps the first weights of a tied head unless it gets "
                f"--worker-extension-cls {WORKER}, with PYTHONPATH={WORKER_FOLDER}"
            )

    def _unfit(self, what: str) -> ConfigError:
        right = command_line(environment(self._needs), ["vllm", "serve", self._needs.model], settings(self._needs))
        return ConfigError(f"{self.place} {what}. Start it with: {right}")


def _field(answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise PassingError(f"a vLLM server's answer has no {name!r}")
    return answer[name]
