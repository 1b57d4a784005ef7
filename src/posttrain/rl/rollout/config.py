"""Config section `rollout`: how the completions to train on are made."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.sections.engines import ENGINES, Correction, EngineName, EngineTraits
from posttrain.config.sections.servers import ServersConfig
from posttrain.config.strict import StrictModel
from posttrain.rl.presets import SamplingCorrection
from posttrain.rl.rollout.engines.config import OwnEngine, require_servers_fit
from posttrain.rl.rollout.filters.catalogue import require_acceptable
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.replay.config import RolloutReplayConfig, SuccessesConfig, require_ages_hold
from posttrain.rl.rollout.sampling import RolloutSampling

# Sampling options that change the model's probabilities, with the values at which they do not.
_CHANGES_PROBABILITIES = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


_LIMIT, _AHEAD_LIMIT, _AHEAD_FLOOR = 3.0, 2.0, 0.5


class WatchConfig(StrictModel):
    """Limits beyond which a run warns, if they are passed three steps in a row."""

    effective_share: float = Field(default=0.3, ge=0, le=1)
    """Lowest share of the tokens that count once they are weighted by their ratios."""

    logprob_difference: float = Field(default=0.15, gt=0)
    """Highest mean distance of a token's log-probability from the model's own, in nats."""


class RolloutConfig(RejectionConfig, RolloutSampling):
    """The completions to train on: a group of `generations` for each prompt."""

    generations: int = Field(default=8, ge=2)
    """Completions per prompt, which are compared with each other."""

    steps_per_generation: int = Field(default=1, ge=1)
    """Optimizer steps in one pass over the generated completions, each with its own share of the prompts."""

    iterations: int = Field(default=1, ge=1)
    """Number of passes over the generated completions: how often each one is trained on."""

    engine: Literal["hf", "vllm", "vllm-server", "sglang-server"] | OwnEngine = "hf"
    """Inference engine: `hf` is the training model itself, through transformers, and is exactly reproducible; the
    others keep a copy of its weights and are several times as fast. `vllm` runs beside the trainer (it needs the extra
    of the same name; for a CPU see the README), `vllm-server` and `sglang-server` in servers, and a class of your own
    wherever you like."""

    servers: ServersConfig | None = None
    """The servers of `vllm-server` or `sglang-server`."""

    compile: bool | Literal["auto"] = "auto"
    """Whether the engine compiles its copy of the model: 1.4 times as fast on a CPU, but the first start takes 45 s
    longer and later ones 6 s. `auto` compiles on CUDA, and on a CPU if the layers being trained are compiled too."""

    sync: Literal["auto", "adapter", "weights"] = "auto"
    """What an engine with its own weights receives after each optimizer step: only the LoRA adapter, or all weights
    with the adapter merged in; `auto` sends the adapter on CUDA, unless the engine cannot use it as it is."""

    gpu_memory_utilization: float = Field(default=0.3, gt=0, lt=1)
    """Share of a CUDA device's memory for the engine's own weights and KV cache, beside the training model."""

    sleep: bool = False
    """Whether the engine frees that memory while the model trains (on CUDA, if the engine supports it): the share can
    then be larger, but the engine's weights move to host memory and back at each step."""

    batch_size: int = Field(default=64, ge=1)
    """Completions that `hf` generates at once; other engines do their own batching."""

    staleness: int = Field(default=0, ge=0, le=16)
    """Generations that are made ahead, with weights older by as many generations, while the model learns; 0 waits for
    each. What is sampled with which weights is a formula, so the run repeats all the same."""

    placement: Literal["auto", "process", "child"] = "auto"
    """Where the engine runs: in the trainer's process, or in a child process with its own copy of the weights; `auto`
    is a child process if `staleness` is above 0."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of an engine in a child process. If not given, the engine and the trainer have half of torch's each
    where both compute on a CPU at the same time (`staleness`); else torch's default."""

    engine_seconds: float = Field(default=1800.0, gt=0, le=86400)
    """How long an engine in a child process may be silent, a day at most; it sends each completion when it has ended,
    `hf` those of a batch together. If it is silent for longer or dies, it is started again with what is left of its
    task; after three times in a row the run stops, after a checkpoint."""

    segment_tokens: int | None = Field(default=None, ge=1)
    """New tokens that a generation gives a completion at most; the next generation goes on with those that have not
    ended, so that a few long ones keep nothing waiting. A group is trained once its last completion has ended. All in
    one generation if not given."""

    max_age: int | None = Field(default=None, ge=0)
    """Refuse settings by which a token could be trained more optimizer steps after the weights that sampled it."""

    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longer prompts are skipped and counted: they get no completions and are not trained on."""

    importance_correction: Literal["auto"] | Correction = "auto"
    """How the loss corrects for sampling probabilities that differ from the training model's own: not at all, or by
    their ratio per token or per completion, cut to a range (truncate) or left out outside of it (mask); `auto` is
    token_mask with `staleness`, `segment_tokens`, `replay` or `successes`; otherwise none for `hf`, which samples from
    the training model, and what the engine needs for the others."""

    importance_limit: float | None = Field(default=None, gt=1)
    """Highest ratio that is in range; 3 unless given, 2 with `staleness`, `segment_tokens`, `replay` or `successes`."""

    importance_floor: float | None = Field(default=None, gt=0, lt=1)
    """Lowest ratio that is in range; none unless given, 0.5 with `staleness`, `segment_tokens`, `replay` or
    `successes`."""

    importance_ratio: Literal["proximal", "behaviour"] = "proximal"
    """What the algorithm's own ratio compares the model with: `proximal` is itself when the completions' first step
    began, with the correction as a factor; `behaviour` is the probabilities that sampled them, without one."""

    watch: WatchConfig = WatchConfig()
    """When to warn about sampling probabilities that are far from the model's own."""

    replay: RolloutReplayConfig | None = None
    """Trains groups of earlier steps again; null does not."""

    successes: SuccessesConfig | None = None
    """Puts remembered solutions into groups that failed throughout; null does not."""

    record: bool = False
    """Whether every generation is kept in the run's folder `rollouts`, for another run to train on it with
    `--rollouts-from`."""

    @property
    def engine_name(self) -> EngineName:
        """The engine's name in `ENGINES`."""
        return "own" if isinstance(self.engine, OwnEngine) else self.engine

    @property
    def traits(self) -> EngineTraits:
        """What the engine can do."""
        return ENGINES[self.engine_name]

    @property
    def is_apart(self) -> bool:
        """Whether the engine runs in another process, so that the trainer can go on meanwhile."""
        is_child = self.placement == "child" or (self.placement == "auto" and self.staleness > 0)
        return is_child or self.traits.is_server

    @property
    def has_weights(self) -> bool:
        """Whether the engine has weights of its own, and does not generate with the model in training."""
        return self.is_apart or self.traits.has_weights

    @property
    def segments(self) -> int:
        """How many generations a completion is made in at most."""
        return 1 if self.segment_tokens is None else -(-self.longest // self.segment_tokens)

    @property
    def weight_versions(self) -> int:
        """The most versions of the weights that are kept for the engine at once.

        An engine apart has one loaded, to be started again with it, while those of `staleness` generations and the next
        one wait.
        """
        return self.staleness + 2 if self.is_apart else 1

    @property
    def oldest(self) -> int:
        """The most optimizer steps that can lie between the weights that sample a token and the step that trains it."""
        stride = self.steps_per_generation * self.iterations
        return (self.staleness + self.segments) * stride - 1

    @property
    def correction(self) -> SamplingCorrection:
        """The correction for the sampling probabilities, with `auto` resolved."""
        if self.importance_ratio == "behaviour":
            return SamplingCorrection(against_behaviour=True)
        kind = self.importance_correction
        is_older = bool(self.staleness or self.segment_tokens or self.replay or self.successes)
        if kind == "auto":
            # The product over a long completion by older weights is mostly out of range, or large.
            kind = "token_mask" if is_older else self.traits.correction
        return SamplingCorrection(
            kind,
            self.importance_limit or (_AHEAD_LIMIT if is_older else _LIMIT),
            self.importance_floor or (_AHEAD_FLOOR if is_older else None),
        )

    @model_validator(mode="after")
    def _servers_fit(self) -> "RolloutConfig":
        fields = type(self).model_fields
        given = {name: value for name, value in self if value != fields[name].get_default()}
        require_servers_fit(self.engine_name, self.traits, self.servers, given)
        return self

    @model_validator(mode="after")
    def _engine_can_run_ahead(self) -> "RolloutConfig":
        if self.staleness and not self.is_apart:
            raise ValueError(
                f"staleness: {self.staleness} needs an engine that generates while the model learns; set placement: "
                "child or auto, or staleness: 0"
            )
        if self.staleness and self.sleep:
            raise ValueError(
                f"sleep: true, but with staleness: {self.staleness} the engine generates while the model learns; "
                "set sleep: false, or staleness: 0"
            )
        return self

    @model_validator(mode="after")
    def _filters_accept_something(self) -> "RolloutConfig":
        require_acceptable(self.filters, self.generations, self.longest)
        return self

    @model_validator(mode="after")
    def _correction_compares_like_with_like(self) -> "RolloutConfig":
        changing = [name for name, neutral in _CHANGES_PROBABILITIES.items() if getattr(self, name) != neutral]
        if self.correction.needs_logprobs and changing:
            raise ValueError(
                f"importance_correction: {self.correction.kind} compares the model's own probabilities, which "
                f"{', '.join(changing)} would change; leave that out, or set importance_correction: none"
            )
        limits = [name for name in ("importance_limit", "importance_floor") if getattr(self, name) is not None]
        if self.correction.kind == "none" and limits:
            by_ratio = self.importance_ratio == "behaviour"
            raise ValueError(
                f"{', '.join(limits)}: has no effect with "
                f"{'importance_ratio: behaviour' if by_ratio else 'importance_correction: none'}"
                f"{' (auto for this engine)' * (not by_ratio and self.importance_correction == 'auto')}; leave it out"
            )
        if self.importance_ratio == "behaviour" and self.importance_correction not in ("auto", "none"):
            raise ValueError(
                f"importance_ratio: behaviour corrects by itself, without importance_correction: "
                f"{self.importance_correction}; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _stored_rollouts_fit(self) -> "RolloutConfig":
        section = "replay" if self.replay else "successes" if self.successes else None
        if section is None:
            return self
        if self.correction.kind == "none":
            ratio = self.importance_ratio == "behaviour"
            raise ValueError(
                f"{'importance_ratio: behaviour' if ratio else 'importance_correction: none'}, but {section} trains "
                "completions of earlier weights, which need an importance correction; leave it out"
            )
        if self.replay and self.replay.fill == "rejected" and self.rejected == "keep":
            raise ValueError(
                "replay: fill: rejected takes the slots of rejected groups, but these are kept; give filters with "
                "rejected: substitute or drop, or choose fill: reserved"
            )
        if self.replay and self.replay.fill == "reserved" and self.record:
            raise ValueError(
                "record: true, but replay: fill: reserved generates nothing for some slots, so that a run that trains "
                "on the record would have fewer groups; leave record out, or choose fill: rejected"
            )
        require_ages_hold(self.replay, self.successes, self.staleness, self.steps_per_generation * self.iterations)
        return self

    @model_validator(mode="after")
    def _engine_takes_it(self) -> "RolloutConfig":
        self.traits.require_temperature(max(self.temperatures))
        for option, ability in (("sleep", "sleeps"), ("compile", "compiles")):
            if getattr(self, option) is True and not getattr(self.traits, ability):
                able = " or ".join(name for name, traits in ENGINES.items() if getattr(traits, ability))
                raise ValueError(f"{option}: true needs engine: {able}, but this is {self.engine_name}; leave it out")
        if self.sync == "adapter" and self.traits.has_weights and not self.traits.takes_adapter:
            raise ValueError(f"sync: adapter is not possible with {self.traits.title}; use weights or auto")
        return self

    @model_validator(mode="after")
    def _segments_fit(self) -> "RolloutConfig":
        tokens = self.segment_tokens
        if tokens is None:
            return self
        if tokens >= self.longest:
            raise ValueError(
                f"segment_tokens: {tokens}, but no completion is longer than max_new_tokens: {self.longest}; lower it, "
                "or leave it out"
            )
        if self.rejected == "substitute":
            raise ValueError(
                "segment_tokens, but rejected: substitute needs whole groups in the generation that asks them; choose "
                "keep or drop, or leave segment_tokens out"
            )
        if self.record:
            raise ValueError("segment_tokens, but record: true keeps whole generations only; leave one of them out")
        if self.replay or self.successes:
            raise ValueError(
                "segment_tokens, but replay and successes fill the slots of a generation whose groups are whole; leave "
                "one of them out"
            )
        if self.stop:
            raise ValueError(
                "segment_tokens, but a stop text could lie across the border of two segments; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _is_young_enough(self) -> "RolloutConfig":
        if self.max_age is not None and self.max_age < self.oldest:
            raise ValueError(
                f"max_age: {self.max_age}, but tokens can be {self.oldest} optimizer steps old when they are trained "
                "(by staleness, segment_tokens, steps_per_generation and iterations); raise it, or lower those"
            )
        return self

    @model_validator(mode="after")
    def _a_burst_consists_of_generations(self) -> "RolloutConfig":
        stride, burst = self.steps_per_generation * self.iterations, self.temperature_burst
        if burst is None:
            return self
        for key, steps in (("every", burst.every), ("length", burst.length)):
            if steps % stride:
                raise ValueError(
                    f"temperature_burst: {key}: {steps} falls in the middle of a generation, which serves {stride} "
                    f"optimizer steps; choose a multiple of {stride}"
                )
        return self
