"""The targets of the benchmarks, and how each figure is computed from the numbers of its part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rivals
from measuring import biggest_difference

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure, and the bound it should be above or below.

    Attributes:
        part: the benchmark whose numbers it uses.
        measured: computes the figure from these numbers.
        about_results: whether it shows that both sides compute the same, rather than how fast they are.
    """

    part: str
    what: str
    measured: Callable[[Numbers], float]
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"
    about_results: bool = False

    @property
    def bound(self) -> float:
        """The figure to reach."""
        found = self.at_most if self.at_least is None else self.at_least
        assert found is not None
        return found

    def is_met(self, value: float) -> bool:
        """Whether `value` is on the right side of the bound."""
        return self.times_reached(value) >= 1

    def times_reached(self, value: float) -> float:
        """How many times better than its bound `value` is."""
        return value / self.bound if self.at_most is None else self.bound / max(value, 1e-12)


def rival(numbers: Numbers) -> Numbers:
    """The figures of the one run whose name gives a rival's version."""
    (found,) = (found for run, found in numbers.items() if any(f" {version}," in run for version in rivals.VERSIONS))
    return found


def over_rival(figure: str, *runs: str) -> Callable[[Numbers], float]:
    """A figure of the best of these runs of the toolkit, over the rival's."""
    return lambda numbers: max(numbers[run][figure] for run in runs) / rival(numbers)[figure]


def grpo_speed(run: str) -> Callable[[Numbers], float]:
    """TRL's seconds per step, over those of `run`."""
    return lambda numbers: rival(numbers)["all"] / numbers[run]["all"]


def step_over(figure: str, staleness: int) -> Callable[[Numbers], float]:
    """Seconds per step with a slow grader, over the ideal or the busiest part of the same run (see rollouts.py)."""
    return lambda numbers: numbers[f"slow grader, k = {staleness}, half cores"][figure]


def merge_ratio(figure: str) -> Callable[[Numbers], float]:
    """The toolkit's figure, over PEFT's."""
    return lambda numbers: numbers["toolkit"][figure] / numbers["PEFT"][figure]


def start_ratio(start: str) -> Callable[[Numbers], float]:
    """Seconds to the first optimizer step, over those of TRL's command."""
    return lambda numbers: numbers["toolkit"][start] / numbers["TRL"][start]


def loss_difference(one: str, other: str) -> Callable[[Numbers], float]:
    """The biggest difference between the losses of two runs, step by step, in nats."""
    return lambda numbers: biggest_difference(numbers[one]["losses"], numbers[other]["losses"])


def figure(name: str) -> Callable[[Numbers], float]:
    """One of the numbers as it is."""
    return lambda numbers: numbers[name]


def memory_growth(numbers: Numbers) -> float:
    """The dataserver's memory after all requests, over that after a tenth of them."""
    return numbers["memory after all requests, MiB"] / numbers["memory after a tenth of the requests, MiB"]


SFT_LOSSES = loss_difference("toolkit, float32", "TRL, float32")
DPO_LOSSES = loss_difference("toolkit, float32, cached", "TRL, float32")

TARGETS = (
    Target("sft", "tokens/s, compiled, over TRL's fastest", over_rival("tokens_per_second", "toolkit"), at_least=2.5),
    Target("sft", "losses in float32 apart from TRL's", SFT_LOSSES, at_most=1e-3, unit=" nats", about_results=True),
    Target(
        "dpo",
        "pairs/s over an epoch, compiled, over TRL's fastest",
        over_rival("one_epoch_pairs_per_second", "toolkit, cached", "toolkit, live"),
        at_least=3.0,
    ),
    Target("dpo", "losses in float32 apart from TRL's", DPO_LOSSES, at_most=1e-3, unit=" nats", about_results=True),
    Target(
        "grpo",
        "speed of a step, by vLLM, all compiled, over TRL's fastest, by transformers",
        grpo_speed("toolkit, vLLM"),
        at_least=4.0,
    ),
    Target(
        "grpo",
        "speed of a step, by transformers, layers compiled, over TRL's fastest, by transformers",
        grpo_speed("toolkit, transformers"),
        at_least=1.5,
    ),
    Target("rollouts", "step, slow grader, 1 generation ahead, over its ideal", step_over("of_ideal", 1), at_most=1.15),
    Target("rollouts", "step, slow grader, 2 ahead, over its ideal", step_over("of_ideal", 2), at_most=1.15),
    Target("rollouts", "step, slow grader, 2 ahead, over its busiest part", step_over("of_busiest", 2), at_most=1.15),
    Target(
        "predict",
        "tokens/s by vLLM, once started, over the fastest generate",
        over_rival("tokens_per_second", "toolkit, vLLM"),
        at_least=5.0,
    ),
    Target(
        "predict",
        "tokens/s by transformers, over the fastest generate",
        over_rival("tokens_per_second", "toolkit, hf"),
        at_least=3.0,
    ),
    Target("merge", "peak memory, over PEFT's", merge_ratio("peak"), at_most=0.4),
    Target("merge", "time, over PEFT's", merge_ratio("seconds"), at_most=1.0),
    Target("merge", "weights apart from PEFT's", figure("difference"), at_most=2**-7, unit="", about_results=True),
    Target("start", "toolkit-sft --help", figure("help"), at_most=0.4, unit=" s"),
    Target("start", "dry run, caches warm", figure("dry run"), at_most=5, unit=" s"),
    Target("start", "first step, caches warm, over TRL's command", start_ratio("warm"), at_most=0.7),
    Target("start", "first step, caches cold, over TRL's command", start_ratio("cold"), at_most=0.7),
    Target("dataserver", "start, caches warm", figure("start, warm, s"), at_most=1, unit=" s"),
    Target("dataserver", "cheap items graded per second", figure("cheap items per s"), at_least=10_000, unit=""),
    Target("dataserver", "sample of 8, 95th percentile", figure("sample of 8, p95, ms"), at_most=10, unit=" ms"),
    Target("dataserver", "grade of 64, 95th percentile", figure("grade of 64, cheap, p95, ms"), at_most=50, unit=" ms"),
    Target(
        "dataserver",
        "grade of 64 by math_verify, 95th percentile",
        figure("grade of 64, math_verify, p95, ms"),
        at_most=250,
        unit=" ms",
    ),
    Target("dataserver", "memory at the end, over a tenth of the requests", memory_growth, at_most=1.1),
)
