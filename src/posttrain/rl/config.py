"""The config file of `toolkit-rl-train`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.generation import GenerationConfig, SamplingConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig, require_lora_fits
from posttrain.config.sections.optim.schedules import ScheduleConfig, ScheduleName
from posttrain.config.sections.parallel import ParallelConfig, require_parallel_fits, trains_a_copy
from posttrain.config.sections.run import RunConfig, require_best_is_measured
from posttrain.config.sections.training import TrainingConfig, require_training_fits
from posttrain.config.strict import ConfigPath, StrictModel, written_as
from posttrain.config.values import VariableName
from posttrain.rl.presets import Algorithm, ObjectiveConfig, resolve_objective
from posttrain.rl.rollout.config import RolloutConfig

_URL = r"^https?://"


class DataserverSection(StrictModel):
    """Where prompts and rewards come from."""

    config: ConfigPath | None = None
    """Config file of a dataserver to start with the trainer and stop with it."""

    url: Annotated[str | None, written_as(_URL, "an address that begins with http:// or https://")] = Field(
        default=None, pattern=_URL
    )
    """Or: address of a dataserver that is already running, such as `http://127.0.0.1:9000`."""

    token_env: VariableName | None = None
    """Environment variable that holds the server's token, if it requires one."""

    retry_seconds: float = Field(default=300.0, gt=0)
    """How long to retry a request while the server is unreachable or overloaded."""

    on_grade_failure: Literal["stop", "abstain"] = "stop"
    """What to do if the retries fail: stop, after writing a checkpoint; or continue without rewards, so that a step
    teaches nothing, for at most `abstain_steps` generations in a row."""

    abstain_steps: int = Field(default=5, ge=1)
    """How many generations in a row may go without rewards; a resumed run counts anew."""

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

    schedule: ScheduleName | ScheduleConfig = "constant"
    """How the learning rate falls after the warm-up: a name, or a section with `kind` and options; `constant` keeps it,
    `warmup_stable_decay` keeps it until the last tenth of the run."""


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

    parallel: ParallelConfig = ParallelConfig()
    """How several processes share the model."""

    run: RunConfig = RunConfig()
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
                f"engine: {rollout.engine_name} would sample from the base in full precision; set "
                "model.quantization: none, or engine: hf"
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
    def _substitutes_are_graded(cls, rollout: RolloutConfig, info: ValidationInfo) -> RolloutConfig:
        server: DataserverSection | None = info.data.get("dataserver")
        if rollout.rejected == "substitute" and server is not None and server.on_grade_failure == "abstain":
            raise ValueError(
                "rejected: substitute needs the rewards of a group to judge it, but dataserver.on_grade_failure: "
                "abstain goes on without; choose stop, or rejected: keep"
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

    @field_validator("rollout")
    @classmethod
    def _older_rollouts_are_corrected(cls, rollout: RolloutConfig, info: ValidationInfo) -> RolloutConfig:
        older = [key for key in ("replay", "successes", "staleness", "segment_tokens") if getattr(rollout, key)]
        if not older or "objective" not in info.data or "algorithm" not in info.data:
            return rollout
        level = resolve_objective(info.data["algorithm"], info.data["objective"]).importance_sampling_level
        kind, is_stored = rollout.correction.kind, bool(rollout.replay or rollout.successes)
        if level != "token" and (kind.startswith("token") or (is_stored and not kind.startswith("sequence"))):
            raise ValueError(
                f"{older[0]}: {info.data['algorithm']} takes one ratio per completion, so the tokens of earlier "
                f"weights that importance_correction: {kind} leaves out would be trained all the same; set it to "
                "sequence_mask or sequence_truncate"
            )
        return rollout

    @field_validator("evaluation")
    @classmethod
    def _temperature_fits(cls, evaluation: EvaluationConfig | None, info: ValidationInfo) -> EvaluationConfig | None:
        rollout: RolloutConfig | None = info.data.get("rollout")
        if evaluation is not None and rollout is not None:
            rollout.traits.require_temperature(evaluation.temperature)
        return evaluation

    @field_validator("training")
    @classmethod
    def _training_fits(cls, training: RLTrainingConfig, info: ValidationInfo) -> RLTrainingConfig:
        if "lora" in info.data:
            require_training_fits(training, info.data["lora"], info.data.get("model"))
        if training.exports_average and info.data.get("evaluation") and "rollout" in info.data:
            require_engine_without_weights(info.data["rollout"])
        return training

    @field_validator("parallel")
    @classmethod
    def _parallel_fits(cls, parallel: ParallelConfig, info: ValidationInfo) -> ParallelConfig:
        rollout, is_known = info.data.get("rollout"), "objective" in info.data and "algorithm" in info.data
        beta = resolve_objective(info.data["algorithm"], info.data["objective"]).beta if is_known else 0
        others = {
            "an engine that generates with the model in training (set rollout.placement: child)": (
                rollout is not None and not rollout.has_weights
            ),
            f"objective.beta: {beta:g} without a new adapter, which keeps a copy": beta > 0
            and trains_a_copy(info.data),
        }
        return require_parallel_fits(parallel, info.data, others)

    @field_validator("run")
    @classmethod
    def _export_fits(cls, run: RunConfig, info: ValidationInfo) -> RunConfig:
        return require_best_is_measured(run, info, "evaluation")


def require_engine_without_weights(rollout: RolloutConfig) -> None:
    """Raise ValueError if the engine has weights of its own: it gets those in training, and cannot evaluate an
    average."""
    if rollout.has_weights:
        raise ValueError(
            "an average of the weights is exported, but this rollout engine gets the weights in training, so the "
            "evaluation would be of others; set rollout.engine: hf and rollout.placement: process, or ema.export: "
            "live, or leave evaluation out"
        )
