"""The targets of the benchmarks, and how each figure is computed from the numbers of its part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def sft_speed(rival: str) -> Callable[[Numbers], float]:
    """Tokens per second, over the best of the runs whose names begin with `rival`."""
    return lambda numbers: numbers["toolkit"]["tokens_per_second"] / best(numbers, rival, "tokens_per_second")


def best(numbers: Numbers, runs: str, figure: str) -> float:
    """The highest figure among the runs whose names begin with `runs`."""
    return max(found[figure] for run, found in numbers.items() if run.startswith(runs))


def dpo_speed(numbers: Numbers) -> float:
    """Pairs per second over an epoch, including the cost of the reference, for the best way of each side."""
    epoch = "one_epoch_pairs_per_second"
    ours = (found[epoch] for run, found in numbers.items() if run in ("toolkit, cached", "toolkit, live"))
    return max(ours) / best(numbers, "TRL, tuned", epoch)


def dpo_step_speed(numbers: Numbers) -> float:
    """Pairs per second of the steps alone, with the reference precomputed on both sides."""
    figure = "pairs_per_second"
    return numbers["toolkit, cached"][figure] / best(numbers, "TRL, tuned, precomputed", figure)


def grpo_speed(run: str) -> Callable[[Numbers], float]:
    """TRL's seconds per step, over those of `run`."""
    return lambda numbers: numbers["TRL, tuned, transformers"]["all"] / numbers[run]["all"]


def step_over(figure: str, staleness: int) -> Callable[[Numbers], float]:
    """Seconds per step with a slow grader, over the ideal or the busiest part of the same run (see rollouts.py)."""
    return lambda numbers: numbers[f"slow grader, k = {staleness}, half cores"][figure]


def predict_speed(engine: str) -> Callable[[Numbers], float]:
    """Tokens per second with this engine, over the faster way to call `generate`."""
    figure = "tokens_per_second"
    return lambda numbers: numbers[engine][figure] / best(numbers, "generate", figure)


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
    Target("sft", "tokens/s, compiled, over the fastest way of TRL tuned", sft_speed("TRL, tuned"), at_least=1.6),
    Target("sft", "tokens/s, compiled, over TRL default", sft_speed("TRL, default"), at_least=2.2),
    Target("sft", "losses in float32 apart from TRL's", SFT_LOSSES, at_most=1e-3, unit=" nats", about_results=True),
    Target("dpo", "pairs/s over an epoch, compiled, over the fastest way of TRL tuned", dpo_speed, at_least=2.0),
    Target("dpo", "pairs/s of a step, compiled, over the fastest way of TRL tuned", dpo_step_speed, at_least=2.0),
    Target("dpo", "losses in float32 apart from TRL's", DPO_LOSSES, at_most=1e-3, unit=" nats", about_results=True),
    Target(
        "grpo",
        "speed of a step, by vLLM, all compiled, over TRL tuned, by transformers",
        grpo_speed("toolkit, vLLM"),
        at_least=2.5,
    ),
    Target(
        "grpo",
        "speed of a step, by transformers, layers compiled, over TRL tuned, by transformers",
        grpo_speed("toolkit, transformers"),
        at_least=1.5,
    ),
    Target("rollouts", "step, slow grader, 1 generation ahead, over its ideal", step_over("of_ideal", 1), at_most=1.15),
    Target("rollouts", "step, slow grader, 2 ahead, over its ideal", step_over("of_ideal", 2), at_most=1.15),
    Target("rollouts", "step, slow grader, 2 ahead, over its busiest part", step_over("of_busiest", 2), at_most=1.15),
    Target(
        "predict",
        "tokens/s by vLLM, once started, over the faster generate",
        predict_speed("toolkit, vLLM"),
        at_least=3.0,
    ),
    Target("predict", "tokens/s by transformers, over the faster generate", predict_speed("toolkit, hf"), at_least=1.3),
    Target("merge", "peak memory, over PEFT's", merge_ratio("peak"), at_most=0.4),
    Target("merge", "time, over PEFT's", merge_ratio("seconds"), at_most=1.0),
    Target("merge", "weights apart from PEFT's", figure("difference"), at_most=2**-7, unit="", about_results=True),
    Target("start", "toolkit-sft --help", figure("help"), at_most=0.4, unit=" s"),
    Target("start", "first step, caches warm, over TRL's command", start_ratio("warm"), at_most=0.7),
    Target("start", "first step, caches cold, over TRL's command", start_ratio("cold"), at_most=0.7),
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
