"""Config section `generation`: how answers are generated."""

from typing import Annotated

from pydantic import Field, model_validator

from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.config.sections.engines import EngineName
from posttrain.config.strict import StrictModel


class SamplingConfig(StrictModel):
    """How one answer is sampled; temperature 0 is greedy decoding."""

    max_new_tokens: int = Field(default=256, ge=1)
    """Longest answer, in tokens."""

    temperature: float = Field(default=0.0, ge=0)
    """0 takes the likeliest token each time; higher is more varied."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that together have this probability."""

    top_k: int = Field(default=0, ge=0)
    """Sample from this many of the likeliest tokens; 0 does not limit them."""

    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Leave out tokens less likely than this share of the likeliest one."""

    repetition_penalty: float = Field(default=1.0, gt=0)
    """Divide the score of tokens that were already said; 1 does nothing."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts at which an answer ends, besides the model's own end token."""


class GenerationConfig(SamplingConfig):
    """Sampling options; temperature 0 is greedy decoding."""

    engine: EngineName = "hf"
    """What generates: `hf` is transformers; the others are several times as fast and take longer to start."""

    n: int = Field(default=1, ge=1)
    """Answers for each prompt; more than one wants a temperature above 0."""

    seed: int = Field(default=0, ge=0)
    """Seed of the samples."""

    batch_size: int = Field(default=16, ge=1)
    """Answers that are generated at once by `hf`; other engines see to that themselves."""

    logprobs: bool = False
    """Write the log-probability of each answer's tokens besides."""

    columns: ColumnsConfig = ColumnsConfig()
    """What the columns of the input are called."""

    @model_validator(mode="after")
    def _answers_differ(self) -> "GenerationConfig":
        if self.n > 1 and self.temperature == 0:
            raise ValueError(
                f"n: {self.n} with temperature: 0 gives the same answer {self.n} times; raise the temperature"
            )
        return self
