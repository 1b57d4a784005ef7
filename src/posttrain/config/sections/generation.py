"""Config section `generation`: how answers are generated."""

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.config.sections.engines import LocalEngine
from posttrain.config.strict import StrictModel, written_as


class TokenChoiceConfig(StrictModel):
    """Which tokens may be sampled, and what ends an answer."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most likely tokens that together have this probability."""

    top_k: int = Field(default=0, ge=0)
    """Sample from this many of the most likely tokens; 0 sets no limit."""

    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Leave out tokens whose probability is less than this share of the most likely token's."""

    repetition_penalty: float = Field(default=1.0, gt=0)
    """Divide the score of tokens that have already occurred; 1 has no effect."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end an answer, besides the model's own end token."""


class _OneLength(StrictModel):
    max_new_tokens: int = Field(default=256, ge=1)
    """Maximum length of an answer, in tokens."""

    temperature: float = Field(default=0.0, ge=0)
    """0 always takes the most likely token; higher values give more varied answers."""


class SamplingConfig(TokenChoiceConfig, _OneLength):
    """How one answer is sampled; temperature 0 is greedy decoding."""


_OTHER_GPUS = {"mps": "Apple's", "xpu": "Intel's", "npu": "Ascend's"}


def _is_used_here(device: object) -> object:
    if isinstance(device, str) and (whose := _OTHER_GPUS.get(device.partition(":")[0])):
        raise ValueError(f"{device}: accelerators of {whose} kind are not used here; name cpu, or cuda:0 and so on")
    return device


_DEVICE = r"^(cpu|cuda:[0-9]{1,3})$"
Device = Annotated[
    str, Field(pattern=_DEVICE), written_as(_DEVICE, "cpu, or cuda:0 and so on"), BeforeValidator(_is_used_here)
]


class AnsweringConfig(SamplingConfig):
    """How rows are answered; temperature 0 is greedy decoding."""

    engine: LocalEngine = "hf"
    """Inference engine: `hf` is transformers; the others are several times as fast but take longer to start."""

    seed: int = Field(default=0, ge=0)
    """Seed for sampling."""

    batch_size: int = Field(default=32, ge=1)
    """Answers that `hf` generates at once; other engines do their own batching."""

    devices: tuple[Device, ...] = ()
    """Devices to answer with, each with a copy of the model in a process of its own, such as `[cuda:0, cuda:1]`, or
    `[cpu, cpu]`; the answers are those of one device. By default the first accelerator, or else the CPU."""

    @field_validator("devices")
    @classmethod
    def _devices_are_alike(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        if len({device == "cpu" for device in devices}) > 1:
            raise ValueError("cpu beside cuda would give other answers than one device; name devices of one kind")
        if twice := [device for device in devices if device != "cpu" and devices.count(device) > 1]:
            raise ValueError(f"{twice[0]} is named twice; name each device once")
        return devices


class GenerationConfig(AnsweringConfig):
    """Sampling options; temperature 0 is greedy decoding."""

    n: int = Field(default=1, ge=1)
    """Answers per prompt; more than one requires a temperature above 0."""

    logprobs: bool = False
    """Also write the log-probabilities of each answer's tokens."""

    columns: ColumnsConfig = ColumnsConfig()
    """Names of the input's columns."""

    @model_validator(mode="after")
    def _answers_differ(self) -> "GenerationConfig":
        if fault := why_alike(self.n, self.temperature):
            raise ValueError(fault)
        return self


def why_alike(n: int, temperature: float) -> str | None:
    """Why `n` answers at this temperature would all be the same; None if they would not."""
    if n > 1 and temperature == 0:
        return f"n: {n} with temperature: 0 gives the same answer {n} times; raise the temperature"
    return None
