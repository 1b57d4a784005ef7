"""The wire of one SGLang server: its native endpoint with token ids, and its endpoint for weights.

Checked against SGLang 0.5.23. Each answer names the weights behind each of its tokens. Adapters are not supported here:
SGLang cannot load any on a CPU, where its answers were checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.base.http import PassingError
from posttrain.errors import ConfigError, ServerError
from posttrain.inference.engine import Completion, Sampling, StopReason
from posttrain.inference.servers.link import Link
from posttrain.inference.servers.wire import Needs, StaleError, command_line, completion, end_reason, numbers

_QUICK_SECONDS = 30.0
_ALIVE_SECONDS = 5.0


def settings(needs: Needs) -> dict[str, Any]:
    """The options that a server needs, without the model, under the names of its command line."""
    return {"dtype": needs.dtype, "context-length": needs.max_length}


class SglangServer:
    """A `Server` that runs SGLang."""

    def __init__(self, url: str, key: str | None, needs: Needs) -> None:
        self._link = Link("SGLang", url, key)
        self._needs = needs
        self.place = self._link.place

    async def check(self) -> str:
        """As in `Server`."""
        if self._needs.weights == "adapter":
            raise ConfigError(f"{self.place}: adapters cannot be sent to SGLang; say servers.weights: folder")
        info = await self._link.get("/server_info", _QUICK_SECONDS)
        if not isinstance(info, dict) or "dtype" not in info:
            raise PassingError(f"{self.place} answered /server_info without its settings")
        if info["dtype"] not in ("auto", self._needs.dtype):
            raise self._unfit(f"runs with --dtype {info['dtype']}, but the run needs {self._needs.dtype}")
        longest = info.get("context_length")
        if longest is not None and longest < self._needs.max_length:
            raise self._unfit(f"takes {longest} tokens, but the run needs {self._needs.max_length}")
        for option in ("preferred_sampling_params", "allow_auto_truncate"):
            if info.get(option):
                raise self._unfit(f"runs with --{option.replace('_', '-')}, which changes what the run asks for")
        return f"SGLang {info.get('version', 'of an unknown version')}"

    async def require_closed(self) -> None:
        """As in `Server`."""
        if await self._link.answers_without_key("/server_info", _QUICK_SECONDS):
            raise ConfigError(f"{self.place} takes commands without a key: start it with --api-key")

    async def is_alive(self) -> bool:
        """As in `Server`."""
        return await self._link.is_alive("/health", _ALIVE_SECONDS)

    async def load(self, folder: str, label: str) -> None:
        """As in `Server`."""
        body = {"model_path": folder, "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        answer = await self._link.post("/update_weights_from_disk", body, self._needs.control_seconds)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PassingError(f"{self.place} did not load {folder}")
        found = await self._link.get("/model_info", _QUICK_SECONDS)
        if not isinstance(found, dict) or found.get("weight_version") != label:
            raise StaleError(f"{self.place} does not have the weights {label!r}, which it was given")

    async def generate(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str | None) -> Completion:
        """As in `Server`."""
        parameters = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "sampling_seed": seed,
            "stop": list(sampling.stop),
            # No ignore_eos: SGLang would ignore these, too.
            "stop_token_ids": sorted(self._needs.end_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        answer = await self._generate(prompt_ids, {"sampling_params": parameters}, label)
        ids, meta = answer.get("output_ids"), answer["meta_info"]
        reason = meta.get("finish_reason") or {}
        if reason.get("type") not in ("stop", "length"):
            raise PassingError(f"{self.place} ended a completion with {reason.get('type')!r}")
        ended = StopReason.LENGTH
        if reason["type"] == "stop":
            ended = end_reason(self.place, ids, reason.get("matched"), self._needs.end_ids)
        return completion(self.place, ids, self._values(meta, "output_token_logprobs", ids), ended, sampling)

    async def score(self, ids: Sequence[int], label: str | None) -> list[float]:
        """As in `Server`."""
        parameters = {"max_new_tokens": 1, "temperature": 1.0}
        answer = await self._generate(ids, {"sampling_params": parameters, "logprob_start_len": 0}, label)
        values = self._values(answer["meta_info"], "input_token_logprobs", list(ids))
        return numbers(self.place, values[1:], len(ids) - 1)

    async def close(self) -> None:
        """As in `Server`."""
        await self._link.close()

    async def _generate(self, ids: Sequence[int], body: Mapping[str, Any], label: str | None) -> dict[str, Any]:
        request = {**body, "input_ids": list(ids), "return_logprob": True}
        answer = await self._link.post("/generate", request, self._needs.request_seconds)
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise PassingError(f"{self.place} answered /generate without meta_info")
        if meta.get("prompt_tokens") != len(ids):
            raise ServerError(f"{self.place} did not answer the prompt that was sent; is a proxy changing requests?")
        if label is not None:
            found = {span.get("version") for span in meta.get("weight_versions") or [{}]}
            if found != {label}:
                raise StaleError(
                    f"{self.place} answered with the weights {sorted(map(str, found))} instead of {label!r}"
                )
        return answer

    def _values(self, meta: Mapping[str, Any], name: str, ids: Any) -> list[Any]:
        """Log-probabilities from triples (log-probability, token, text); ServerError if they are of other tokens."""
        triples = meta.get(name)
        if not isinstance(triples, list) or not triples or [triple[1] for triple in triples] != ids:
            raise ServerError(f"{self.place} returned no log-probabilities for its tokens")
        return [triple[0] for triple in triples]

    def _unfit(self, what: str) -> ConfigError:
        command = ["python", "-m", "sglang.launch_server", "--model-path", self._needs.model]
        return ConfigError(f"{self.place} {what}. Start it with: {command_line({}, command, settings(self._needs))}")
