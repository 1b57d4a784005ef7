"""The config file of `toolkit-rl-train`."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.engines import ENGINES, Correction, EngineName, EngineTraits
from posttrain.config.sections.generation import GenerationConfig, SamplingConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig, require_lora_fits
from posttrain.config.sections.run import RunConfig, require_best_is_measured
from posttrain.config.sections.training import TrainingConfig
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import VariableName
from posttrain.rl.presets import Algorithm, ObjectiveConfig, SamplingCorrection, resolve_objective
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.replay.config import RolloutReplayConfig, SuccessesConfig
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

    engine: EngineName = "hf"
    """Inference engine: `hf` is the training model itself, through transformers, and is exactly reproducible; the
    others keep a copy of its weights and are several times as fast (each needs the extra of the same name; for a CPU
    see the README)."""

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
    """CPU threads of an engine in a child process; torch's default if not given."""

    engine_seconds: float = Field(default=1800.0, gt=0)
    """How long an engine in a child process may take for one generation. Later, or if it dies, it is started again
    with the same task; after three times in a row the run stops, after a checkpoint."""

    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longer prompts are skipped and counted: they get no completions and are not trained on."""

    importance_correction: Literal["auto"] | Correction = "auto"
    """How the loss corrects for sampling probabilities that differ from the training model's own: not at all, or by
    their ratio per token or per completion, capped at a limit (truncate) or left out beyond it (mask); `auto` is
    token_mask with replay or successes; otherwise none for `hf`, which samples from the training model, and what the
    engine needs for the others."""

    importance_limit: float | None = Field(default=None, gt=1)
    """Highest ratio that is in range; 3 unless given, 2 with `staleness`."""

    importance_floor: float | None = Field(default=None, gt=0, lt=1)
    """Lowest ratio that is in range; none unless given, 0.5 with `staleness`."""

    importance_ratio: Literal["proximal", "behaviour"] = "proximal"
    """What the algorithm's own ratio compares the model with: `proximal` is itself when the completions' first step
    began, with the correction as a factor; `behaviour` is the probabilities that sampled them, without one."""

    watch: WatchConfig = WatchConfig()
    """When to warn about sampling probabilities that are far from the model's own."""

    @property
    def traits(self) -> EngineTraits:
        """What the engine can do."""
        return ENGINES[self.engine]

    replay: RolloutReplayConfig | None = None
    """Trains groups of earlier steps again; null does not."""

    successes: SuccessesConfig | None = None
    """Puts remembered solutions into groups that failed throughout; null does not."""

    @property
    def is_apart(self) -> bool:
        """Whether the engine runs in a process of its own."""
        return self.placement == "child" or (self.placement == "auto" and self.staleness > 0)

    @property
    def correction(self) -> SamplingCorrection:
        """The correction for the sampling probabilities, with `auto` resolved."""
        if self.importance_ratio == "behaviour":
            return SamplingCorrection(against_behaviour=True)
        kind, is_older = self.importance_correction, bool(self.staleness or self.replay or self.successes)
        if kind == "auto":
            # The product over a long completion by older weights is mostly out of range, or large.
            kind = "token_mask" if is_older else self.traits.correction
        return SamplingCorrection(
            kind,
            self.importance_limit or (_AHEAD_LIMIT if is_older else _LIMIT),
            self.importance_floor or (_AHEAD_FLOOR if is_older else None),
        )

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
    def _correction_compares_like_with_like(self) -> "RolloutConfig":
        changing = [name for name, neutral in _CHANGES_PROBABILITIES.items() if getattr(self, name) != neutral]
        if self.correction.needs_logprobs and changing:
            raise ValueError(
                f"importance_correction: {self.correction.kind} compares the model's own probabilities, which "
                f"{', '.join(changing)} would change; leave that out, or set importance_correction: none"
            )
        return self

    @model_validator(mode="after")
    def _replay_fits(self) -> "RolloutConfig":
        section = "replay" if self.replay else "successes" if self.successes else None
        if section is not None and not self.correction.needs_logprobs:
            raise ValueError(
                f"importance_correction: none, but {section} trains completions of earlier weights, which need one; "
                "leave it out, or choose token_mask"
            )
        if self.replay and self.replay.fill == "rejected" and self.rejected == "keep":
            raise ValueError(
                "replay: fill: rejected takes the slots of rejected groups, but these are kept; give filters with "
                "rejected: substitute or drop, or choose fill: reserved"
            )
        if self.importance_ratio == "behaviour" and self.importance_correction not in ("auto", "none"):
            raise ValueError(
                f"importance_ratio: behaviour corrects by itself, without importance_correction: "
                f"{self.importance_correction}; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _engine_takes_it(self) -> "RolloutConfig":
        self.traits.require_temperature(max(self.temperatures))
        for option, ability in (("sleep", "sleeps"), ("compile", "compiles")):
            if getattr(self, option) is True and not getattr(self.traits, ability):
                able = " or ".join(name for name, traits in ENGINES.items() if getattr(traits, ability))
                raise ValueError(f"{option}: true needs engine: {able}, but this is {self.engine}; leave it out")
        if self.sync == "adapter" and self.traits.has_weights and not self.traits.takes_adapter:
            raise ValueError(f"sync: adapter is not possible with {self.traits.title}; use weights or auto")
        return self

    @model_validator(mode="after")
    def _a_burst_starts_with_a_generation(self) -> "RolloutConfig":
        stride, burst = self.steps_per_generation * self.iterations, self.temperature_burst
        if burst is not None and burst.every % stride:
            raise ValueError(
                f"temperature_burst: every: {burst.every} falls in the middle of a generation, which serves {stride} "
                f"optimizer steps; choose a multiple of {stride}"
            )
        return self


class DataserverSection(StrictModel):
    """Where prompts and rewards come from."""

    config: ConfigPath | None = None
    """Config file of a dataserver to start with the trainer and stop with it."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Or: address of a dataserver that is already running, such as `http://127.0.0.1:9000`."""

    token_env: VariableName | None = None
    """Environment variable that holds the server's token, if it requires one."""

    retry_seconds: float = Field(default=300.0, gt=0)
    """How long to retry a request while the server is unreachable or overloaded."""

    on_grade_failure: Literal["stop", "abstain"] = "stop"
    """What to do if the retries fail: stop, after writing a checkpoint; or continue without rewards, so that a step
    teaches nothing, for at most `abstain_steps` generations in a row."""

    abstain_steps: int = Field(default=5, ge=1)
    """How many generations in a row may go without rewards."""

    beyond_last_stage: bool = False
    """Allow `training.max_steps` to go beyond the dataserver's last stage, whose mix then continues."""

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        if url is not None and "@" in url:
            raise ValueError(
                "the url contains a user name or password; put the token in an environment variable (token_env)"
            )
        return url

    @model_validator(mode="after")
    def _one_server(self) -> "DataserverSection":
        if (self.config is None) == (self.url is None):
            raise ValueError("give either `config` (start a dataserver) or `url` (use a running one), not both")
        return self


class EvaluationConfig(SamplingConfig):
    """Rewards on the dataserver's held-out rows during training."""

    temperature: float = Field(default=0.0, ge=0)
    """0 always takes the most likely token, so that evaluations differ only because of the model."""

    every: int = Field(default=20, ge=1)
    """Optimizer steps between evaluations."""

    at_start: bool = True
    """Also evaluate before the first step, to see what training changes."""

    prompts: int | None = Field(default=None, ge=1)
    """How many held-out rows to evaluate, drawn from the data sets in proportion to what each holds out; all by
    default."""

    samples: int = Field(default=1, ge=1)
    """Completions per prompt; more than one requires a temperature above 0."""

    seed: int = Field(default=0, ge=0)
    """Seed for sampling, the same at every evaluation."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without a better reward; null never stops early."""

    min_improvement: float = Field(default=0.0, ge=0)
    """How much higher the reward must be to count as better for `patience`."""

    @model_validator(mode="after")
    def _samples_differ(self) -> "EvaluationConfig":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"samples: {self.samples} with temperature: 0 gives the same answer {self.samples} times")
        return self


class RLTrainingConfig(TrainingConfig):
    """One optimizer step trains on `rows_per_step` completions, however many devices share the work."""

    rows_per_step: int = Field(default=64, ge=2)
    """Completions per optimizer step, across all devices."""

    micro_batch_size: int = Field(default=8, ge=1)
    """Completions that go through the model at once on one device."""

    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimizer steps; by default at the end of the dataserver's last stage."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Peak learning rate."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls after the warm-up; `constant` keeps it."""


class RLRunConfig(RunConfig):
    """The run directory is `<output_dir>/<name>`."""

    stop_seconds: float = Field(default=30.0, ge=0)
    """After Ctrl-C, how long to wait for completions that are being made for later steps; the rest is made again after
    a resume."""


class RLConfig(StrictModel):
    """Reinforcement learning from graded completions."""

    model: ModelConfig
    """The base model; set its `adapter` to continue from an earlier run, such as SFT."""

    lora: LoraConfig | None = LoraConfig()
    """The adapter; null trains all weights."""

    chat: ChatConfig = ChatConfig()
    """Template of the prompts; its loss mask and length limit apply to SFT only."""

    dataserver: DataserverSection
    """Prompts and rewards."""

    algorithm: Algorithm = "grpo"
    """The algorithm; `--dry-run` shows its settings and its paper."""

    objective: ObjectiveConfig = ObjectiveConfig()
    """Settings of the algorithm to override."""

    rollout: RolloutConfig = RolloutConfig()
    """How the completions to train on are sampled."""

    evaluation: EvaluationConfig | None = None
    """Rewards on held-out rows; none by default."""

    training: RLTrainingConfig = RLTrainingConfig()
    """Optimizer, learning-rate schedule and batch size; `rows_per_step` counts completions."""

    run: RLRunConfig = RLRunConfig()
    """Run directory, checkpoints and trackers."""

    generation: GenerationConfig = GenerationConfig()
    """How toolkit-predict answers with the trained model; training does not use it."""

    @property
    def longest_completion(self) -> int:
        """The most tokens that are generated for a prompt, in training and evaluation."""
        return max(self.rollout.longest, self.evaluation.max_new_tokens if self.evaluation is not None else 0)

    @field_validator("lora")
    @classmethod
    def _adapter_fits(cls, lora: LoraConfig | None, info: ValidationInfo) -> LoraConfig | None:
        return require_lora_fits(lora, info.data.get("model"))

    @field_validator("rollout")
    @classmethod
    def _engine_fits(cls, rollout: RolloutConfig, info: ValidationInfo) -> RolloutConfig:
        model, lora = info.data.get("model"), info.data.get("lora")
        if model is not None and model.quantization != "none" and not rollout.traits.samples_quantised:
            raise ValueError(
                f"engine: {rollout.engine} would sample from the base in full precision; set model.quantization: none, "
                "or engine: hf"
            )
        if not rollout.traits.takes_adapter or rollout.sync != "adapter" or model is None or "lora" not in info.data:
            return rollout
        if lora is None and model.adapter is None:
            raise ValueError("sync: adapter, but there is no adapter: all weights are trained; use weights or auto")
        if lora is not None and (lora.dora or lora.modules_to_save):
            raise ValueError(
                "sync: adapter is not possible with lora.dora or lora.modules_to_save, which "
                f"{rollout.traits.title} does not support; use weights or auto"
            )
        return rollout

    @field_validator("rollout")
    @classmethod
    def _cut_is_not_stopped(cls, rollout: RolloutConfig, info: ValidationInfo) -> RolloutConfig:
        if not rollout.stop or "objective" not in info.data or "algorithm" not in info.data:
            return rollout
        if resolve_objective(info.data["algorithm"], info.data["objective"]).mask_truncated_completions:
            raise ValueError(
                "stop: mask_truncated_completions (of dapo, or in objective) would also mask completions that end at a "
                "stop text; leave stop out, or set objective.mask_truncated_completions: false"
            )
        return rollout

    @field_validator("rollout")
    @classmethod
    def _ratio_fits(cls, rollout: RolloutConfig, info: ValidationInfo) -> RolloutConfig:
        if rollout.importance_ratio == "behaviour" and "objective" in info.data and "algorithm" in info.data:
            level = resolve_objective(info.data["algorithm"], info.data["objective"]).importance_sampling_level
            if level != "token":
                raise ValueError(
                    f"importance_ratio: behaviour, but {info.data['algorithm']} takes one ratio per completion, which "
                    "other sampling probabilities alone would bring out of its range; use proximal"
                )
        return rollout

    @field_validator("evaluation")
    @classmethod
    def _temperature_fits(cls, evaluation: EvaluationConfig | None, info: ValidationInfo) -> EvaluationConfig | None:
        rollout: RolloutConfig | None = info.data.get("rollout")
        if evaluation is not None and rollout is not None:
            rollout.traits.require_temperature(evaluation.temperature)
        return evaluation

    @field_validator("run")
    @classmethod
    def _export_fits(cls, run: RLRunConfig, info: ValidationInfo) -> RunConfig:
        return require_best_is_measured(run, info, "evaluation")
