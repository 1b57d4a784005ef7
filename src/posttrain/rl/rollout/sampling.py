"""The keys of `rollout` that say how completions are sampled, some of which may change over the run."""

from collections.abc import Mapping
from math import floor
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from posttrain.config.schedule import Points, Schedule
from posttrain.config.sections.generation import SamplingConfig, TokenChoiceConfig
from posttrain.config.strict import StrictModel

N = TypeVar("N", int, float)
Temperature = Annotated[float, Field(ge=0)]
Tokens = Annotated[int, Field(ge=1)]


class TemperatureBurst(StrictModel):
    """Another temperature for a few optimizer steps every now and then."""

    every: int = Field(ge=2)
    """Optimizer steps from the start of one burst to the start of the next; the first one starts after as many."""

    length: int = Field(default=1, ge=1)
    """Optimizer steps that a burst lasts: whole generations, as `every`."""

    value: Temperature
    """The temperature during a burst, in place of the usual one."""

    @model_validator(mode="after")
    def _is_short(self) -> "TemperatureBurst":
        if self.length >= self.every:
            raise ValueError(f"length: {self.length} must be below every: {self.every}, or the burst never ends")
        return self

    def is_at(self, iteration: int) -> bool:
        """Whether an iteration lies in a burst."""
        return iteration >= self.every and iteration % self.every < self.length


class _Scheduled(StrictModel):
    max_new_tokens: Tokens | Points[Tokens] = 256
    """Maximum length of a completion, in tokens; or by optimizer step, such as `{"0": 128, "200": 512}`: linear between
    the points, rounded down, and constant outside."""

    temperature: Temperature | Points[Temperature] = 1.0
    """1 samples from the model's own probabilities; higher values give more varied completions. Or by optimizer step,
    such as `{"0": 1.2, "100": 0.9}`."""

    temperature_burst: TemperatureBurst | None = None
    """Another temperature for a few optimizer steps every now and then, so that the model keeps exploring."""


class RolloutSampling(TokenChoiceConfig, _Scheduled):
    """How the completions to train on are sampled; `at` gives the numbers of an iteration."""

    @property
    def longest(self) -> int:
        """The largest `max_new_tokens` of the run."""
        return max(_points(self.max_new_tokens).values())

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures between which those of the run lie."""
        burst = () if self.temperature_burst is None else (self.temperature_burst.value,)
        return (*_points(self.temperature).values(), *burst)

    def at(self, iteration: int) -> SamplingConfig:
        """How the completions of an iteration are sampled: a function of the iteration alone."""
        burst = self.temperature_burst
        usual = Schedule(_points(self.temperature)).at(iteration)
        unscheduled = {name: getattr(self, name) for name in TokenChoiceConfig.model_fields}
        return SamplingConfig(
            **unscheduled,
            max_new_tokens=floor(Schedule(_points(self.max_new_tokens)).at(iteration)),
            temperature=burst.value if burst and burst.is_at(iteration) else float(usual),
        )

    @property
    def told(self) -> str:
        """Temperature and length for a plan, on one line."""
        burst = self.temperature_burst
        sometimes = f" ({burst.value:g} for {burst.length} of every {burst.every} steps)" if burst else ""
        return f"temperature {_told(self.temperature)}{sometimes}, at most {_told(self.max_new_tokens)} new tokens"

    @model_validator(mode="after")
    def _completions_differ(self) -> "RolloutSampling":
        if min(self.temperatures) == 0:
            raise ValueError(
                "temperature: 0 makes all completions of a prompt the same, so nothing can be learnt; 1 is usual"
            )
        return self


def _points(value: N | Mapping[int, N]) -> Mapping[int, N]:
    return value if isinstance(value, Mapping) else {0: value}


def _told(value: float | Mapping[int, float]) -> str:
    if not isinstance(value, Mapping):
        return f"{value:g}"
    return ", ".join(f"{number:g} (step {step})" for step, number in sorted(value.items()))
