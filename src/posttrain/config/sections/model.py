"""Config of the model: which one to load, its LoRA adapter, and several models trained one after another."""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from posttrain.config.sections.run import require_run_name
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import LocalOrNamed
from posttrain.errors import ConfigError


class ModelConfig(StrictModel):
    """The base model."""

    name: LocalOrNamed
    """A packaged model (`smollm2-135m-instruct`), a local folder, a `.gguf` file, or a Hugging Face id."""

    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""

    backend: Literal["auto", "hf", "unsloth"] = "auto"
    """`hf` is transformers + PEFT; `auto` uses unsloth if it is installed and there is a CUDA device."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Compute type of the forward pass; `auto` is bfloat16 if the device computes it fast, float16 on older CUDA
    devices, otherwise float32."""

    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation; `auto` leaves the choice to the backend."""

    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Load the base weights quantised with bitsandbytes: `4bit` is NF4 with double quantisation, `8bit` LLM.int8()."""

    adapter: ConfigPath | None = None
    """Folder of an existing LoRA adapter to continue training, instead of starting a new one."""

    added_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tokens to add to the vocabulary; padding rows of the embedding are used first, and new rows start at the mean."""

    trust_remote_code: bool = False
    """Run Python code that comes with a model folder or hub id; only for sources you trust."""

    _key: str = PrivateAttr("model")

    @property
    def key(self) -> str:
        """The section's key in its config, for messages."""
        return self._key

    def standing_at(self, key: str) -> Self:
        """A copy of the section under another key."""
        copy = self.model_copy()
        copy._key = key
        return copy

    @model_validator(mode="after")
    def _revision_is_read(self) -> "ModelConfig":
        if self.revision is not None and (Path(self.name).is_absolute() or self.name.endswith(".gguf")):
            raise ValueError("revision is for Hugging Face ids, but name is a local path; leave revision out")
        return self

    @model_validator(mode="after")
    def _tokens_differ(self) -> "ModelConfig":
        twice = sorted({token for token in self.added_tokens if self.added_tokens.count(token) > 1})
        if twice:
            raise ValueError(f"added_tokens: {', '.join(twice)} is given twice; keep one")
        return self


class LoraConfig(StrictModel):
    """A LoRA adapter (arXiv:2106.09685). `lora: null` in a config means full fine-tuning."""

    r: int = Field(default=16, ge=1)
    """Rank of the update."""

    alpha: float = Field(default=32, gt=0)
    """Scale of the update: alpha / r, or alpha / sqrt(r) with `rslora`."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's input, during training only."""

    target_modules: Literal["auto", "all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Which layers get an adapter: every linear layer, PEFT's choice for the architecture (`auto`), or those named."""

    target_parameters: tuple[str, ...] = ()
    """Parameters that get an adapter too, by the ends of their names, such as `mlp.experts.gate_up_proj` and
    `mlp.experts.down_proj` of a model with experts, which has all experts of a layer in one tensor (`backend: hf`)."""

    rslora: bool = False
    """Rank-stabilised scale (arXiv:2312.03732): worthwhile from about r = 64."""

    dora: bool = False
    """Learn magnitude and direction separately (DoRA, arXiv:2402.09353): slower, sometimes better at low ranks."""

    modules_to_save: tuple[str, ...] = ()
    """Modules to train in full and save with the adapter, such as `embed_tokens` and `lm_head`."""

    init: Literal["pissa", "pissa_niter_16", "olora", "loftq"] | None = None
    """Start the adapter from the largest singular vectors of each weight (PiSSA, arXiv:2404.02948; with `_niter_16`
    found approximately, in a fraction of the time), from its QR factors (OLoRA, arXiv:2406.01775), or, with a quantised
    base, from those of what quantisation took from it (LoftQ, arXiv:2310.08659, one iteration). The adapter is saved
    with rank 2·r, for the original base. By default it starts at zero."""

    def as_saved(self) -> "LoraConfig":
        """The shape in which the adapter is saved: with `init`, of twice the rank, with the same scale."""
        if self.init is None:
            return self
        alpha = self.alpha * (2**0.5 if self.rslora else 2)
        return self.model_copy(update={"r": 2 * self.r, "alpha": alpha, "init": None})

    @model_validator(mode="after")
    def _parameters_take_it(self) -> "LoraConfig":
        if self.target_parameters and (self.dropout or self.dora or self.init is not None):
            raise ValueError(
                "target_parameters: PEFT adapts parameters by plain LoRA; leave dropout, dora and init out"
            )
        return self

    @model_validator(mode="after")
    def _start_is_exact(self) -> "LoraConfig":
        if self.init is not None and self.dropout:
            raise ValueError(
                f"init: {self.init} needs dropout: 0, as dropout would also drop parts of the weights that it starts "
                "from"
            )
        if self.init is not None and self.dora:
            raise ValueError(f"init: {self.init} cannot be saved for the original base with dora; set dora to false")
        return self


def require_lora_fits(lora: LoraConfig | None, model: ModelConfig | None) -> LoraConfig | None:
    """Return the section; ValueError if the model section (None if itself invalid) contradicts it."""
    if model is not None and model.adapter is not None and lora != LoraConfig():
        raise ValueError("model.adapter already has its own shape; leave the lora section out")
    if model is not None and model.quantization != "none" and lora is None:
        raise ValueError("quantised weights cannot be trained in full; keep the lora section or drop quantization")
    if model is None or lora is None or lora.init is None:
        return lora
    if model.quantization != "none" and lora.init != "loftq":
        raise ValueError(f"init: {lora.init} starts from the base's exact weights; drop quantization, or set loftq")
    if model.quantization == "none" and lora.init == "loftq":
        raise ValueError("init: loftq makes up for quantisation; set model.quantization, or another init")
    return lora


class OneOrSeveralModels(StrictModel):
    """Base of configs that may set `models` instead of `model`."""

    model: ModelConfig
    """The base model; set its `adapter` to continue from an earlier run, such as SFT."""

    models: tuple[ModelConfig, ...] = ()
    """Several models instead of one, trained one after another, each in its own process and run directory;
    `--model-index` picks one of them, counting from 0."""

    @model_validator(mode="before")
    @classmethod
    def _first_of_several(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict) or not isinstance(models := data.get("models"), list | tuple) or not models:
            return data
        if data.get("model") is not None:  # null leaves it out, as where another file is extended
            raise ValueError("give either `model` or `models`, not both")
        try:
            first = ModelConfig.model_validate(models[0], context=info.context)
        except ValidationError:
            first = ModelConfig(name="model")  # its errors are reported under `models`
        return {**data, "model": first}

    def of_model(self, index: int | None) -> Self:
        """The config for one of several models, or this config if it has only one.

        Raises:
            ConfigError: the index is missing, or there is no such model.
        """
        require_model_index(self.models, index)
        if index is None:
            return self
        model = self.models[index].standing_at(f"models.{index}")
        return self.model_copy(update={"model": model, "models": ()})


def require_model_index(models: Sequence[ModelConfig], index: int | None) -> None:
    """Raise ConfigError unless `index` names one of `models`, or is None where there are none."""
    if not models and index is not None:
        raise ConfigError("--model-index: the config has one model; leave the option out")
    if models and (index is None or not 0 <= index < len(models)):
        there = ", ".join(f"{number} for {label}" for number, label in enumerate(model_labels(models)))
        raise ConfigError(f"--model-index: the config has several models; give {there}")


def run_of_model(name: str, models: Sequence[ModelConfig], index: int | None) -> str:
    """The name of a model's run: `name`, or a folder in it if there are several models.

    Raises:
        ConfigError: as in `require_model_index` and `require_run_name`.
    """
    require_model_index(models, index)
    require_run_name(name)
    return name if index is None else f"{name}/{model_labels(models)[index]}"


def model_labels(models: Sequence[ModelConfig]) -> list[str]:
    """The last part of each model's id or path, with the index added where labels would be equal."""
    labels = [PurePath(model.name).name.removesuffix(".gguf").strip(".") or "model" for model in models]
    while len(set(labels)) < len(labels):
        labels = [f"{label}-{index}" if labels.count(label) > 1 else label for index, label in enumerate(labels)]
    return labels
