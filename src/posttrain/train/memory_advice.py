"""What to change in a config whose run does not fit into memory: pure arithmetic on its values, without torch.

A rule looks at one key. It gives nothing where the key is as low as it goes already, or where what failed does not
depend on it. The rules stand in the order of what they cost: first what leaves the training as it is, then what makes
it slower, then what makes it another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from posttrain.config.sections.engines import ENGINES, EngineTraits

_ROUND_TO = 64
"""Tokens: lengths that are proposed are multiples of it, where they are long enough."""


class Phase(StrEnum):
    """What was going on when memory ran out."""

    LOAD = "load"
    """The model was loaded."""
    ENGINE = "engine"
    """A rollout engine beside the training model was started or got its weights."""
    GENERATE = "generate"
    """Completions were generated."""
    SCORE = "score"
    """A forward pass without gradient: an evaluation or a reference."""
    STEP = "step"
    """A forward and backward pass."""
    UPDATE = "update"
    """The optimizer changed the weights."""


@dataclass(frozen=True)
class Situation:
    """What is known of the failure.

    Attributes:
        config: the resolved config as plain values, by section; sections that a command does not have are missing.
        longest: tokens of the longest row that was in the model, where that is known.
    """

    config: Mapping[str, Any]
    phase: Phase
    on_cuda: bool
    longest: int | None = None

    def value(self, key: str) -> Any:
        """Of `section.key`; None where there is no such section."""
        found: Any = self.config
        for name in key.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained, without an adapter."""
        return self.value("lora") is None and self.value("model.adapter") is None

    @property
    def engine(self) -> EngineTraits | None:
        """What generates the completions that are trained on; None where none are."""
        return ENGINES.get(self.value("rollout.engine"))

    @property
    def engine_beside(self) -> EngineTraits | None:
        """The same where it shares a CUDA device with the training model."""
        return self.engine if self.on_cuda and self.engine is not None and self.engine.is_beside else None


@dataclass(frozen=True)
class Change:
    """One key, what it is, what it could be, and what that costs."""

    key: str
    before: str
    after: str
    cost: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} → {self.after} ({self.cost})"


def cheapest_changes(situation: Situation, limit: int = 3) -> list[Change]:
    """The `limit` cheapest changes that would help, the cheapest first; fewer where there are no more."""
    found = (change for rule in _RULES for change in rule(situation))
    return [change for change, _ in zip(found, range(limit), strict=False)]


def _micro_batch(situation: Situation) -> Sequence[Change]:
    rows = situation.value("training.micro_batch_size")
    if situation.phase not in (Phase.STEP, Phase.SCORE) or rows == 1:
        return ()
    # A divisor, so that the optimizer step is made of whole micro-batches as before, on any number of devices.
    fewer = max(divisor for divisor in range(1, rows) if rows % divisor == 0)
    cost = "the same training in smaller pieces: rows_per_step stays"
    return (Change("training.micro_batch_size", str(rows), str(fewer), cost),)


def _reference(situation: Situation) -> Sequence[Change]:
    # Below a new adapter the base itself is the reference, which takes no memory of its own.
    is_copy = situation.trains_all or situation.value("model.adapter") is not None
    if situation.value("reference.type") != "live" or not is_copy:
        return ()
    return (Change("reference.type", "live", "cached", "computed once before training, so no frozen copy stays"),)


def _rollout_batch(situation: Situation) -> Sequence[Change]:
    size = situation.value("rollout.batch_size")
    engine = situation.engine
    if situation.phase is not Phase.GENERATE or engine is None or engine.is_beside or size == 1:
        return ()
    return (Change("rollout.batch_size", str(size), str(size // 2), "as many completions, in more rounds"),)


def _engine_sleeps(situation: Situation) -> Sequence[Change]:
    engine = situation.engine_beside
    if engine is None or situation.value("rollout.sleep") or situation.phase in _ENGINE_AWAKE:
        return ()
    cost = f"{engine.title}'s memory is free while the model learns; its weights go to the machine's memory and back"
    return (Change("rollout.sleep", "false", "true", cost),)


def _engine_share(situation: Situation) -> Sequence[Change]:
    share, engine = situation.value("rollout.gpu_memory_utilization"), situation.engine_beside
    out_of_its_way = situation.value("rollout.sleep") and situation.phase not in _ENGINE_AWAKE
    if engine is None or out_of_its_way or share <= 0.1:
        return ()
    less = max(0.1, round(share * 2 / 3, 2))
    cost = f"{engine.title} answers fewer prompts at once"
    return (Change("rollout.gpu_memory_utilization", f"{share:g}", f"{less:g}", cost),)


def _gradient_checkpointing(situation: Situation) -> Sequence[Change]:
    if situation.phase is not Phase.STEP or situation.value("training.gradient_checkpointing"):
        return ()
    return (Change("training.gradient_checkpointing", "false", "true", "about a third slower"),)


def _optimizer(situation: Situation) -> Sequence[Change]:
    matters = situation.phase in (Phase.STEP, Phase.UPDATE) and situation.on_cuda and situation.trains_all
    if not matters or situation.value("training.optimizer") != "adamw":
        return ()
    return (Change("training.optimizer", "adamw", "adamw_8bit", "2 bytes of states for each weight in place of 8"),)


def _dtype(situation: Situation) -> Sequence[Change]:
    if situation.value("model.dtype") != "float32":
        return ()
    return (Change("model.dtype", "float32", "auto", "16 bits where the device computes them fast; less exact"),)


def _quantization(situation: Situation) -> Sequence[Change]:
    kind = situation.value("model.quantization")
    engine = situation.engine
    possible = situation.on_cuda and not situation.trains_all and (engine is None or engine.is_quantised)
    if not possible or kind not in ("none", "8bit"):
        return ()
    cost = "the frozen weights take half a byte each; slower, and less exact"
    return (Change("model.quantization", kind, "4bit", cost),)


def _completion_length(situation: Situation) -> Sequence[Change]:
    tokens = situation.value("rollout.max_new_tokens")
    if tokens is None or situation.phase not in (Phase.STEP, Phase.SCORE, Phase.GENERATE) or tokens < 2:
        return ()
    return (Change("rollout.max_new_tokens", str(tokens), str(_half(tokens)), "longer completions are cut"),)


def _conversation_length(situation: Situation) -> Sequence[Change]:
    tokens = situation.value("chat.max_length")
    is_limit = situation.value("rollout") is None  # where completions are generated, they have limits of their own
    if not is_limit or situation.phase not in (Phase.STEP, Phase.SCORE):
        return ()
    shorter = max(8, _half(min(tokens, situation.longest or tokens)))
    if shorter >= tokens:
        return ()
    fate = {"error": "refused", "drop": "dropped", "left": "cut", "right": "cut"}[situation.value("chat.truncation")]
    return (Change("chat.max_length", str(tokens), str(shorter), f"longer conversations are {fate}"),)


def _modules_in_full(situation: Situation) -> Sequence[Change]:
    modules = situation.value("lora.modules_to_save")
    if not modules or situation.phase is Phase.GENERATE:
        return ()
    cost = "16 bytes for each of their weights are not needed; what they would have learnt is not learnt"
    return (Change("lora.modules_to_save", f"[{', '.join(modules)}]", "[]", cost),)


def _adapter(situation: Situation) -> Sequence[Change]:
    if not situation.trains_all:
        return ()
    # float32: weight 4, gradient 4, two moments 8; frozen in 16 bits: 2.
    cost = "an adapter learns in the place of all weights: 2 bytes for each of them, or 4 in float32, in place of 16"
    return (Change("lora", "null", "{r: 16}", cost),)


def _half(tokens: int) -> int:
    half = tokens // 2
    return half - half % _ROUND_TO if half >= _ROUND_TO else half


_ENGINE_AWAKE = (Phase.ENGINE, Phase.GENERATE)
_RULES = (
    _reference,
    _micro_batch,
    _rollout_batch,
    _engine_sleeps,
    _engine_share,
    _gradient_checkpointing,
    _optimizer,
    _dtype,
    _quantization,
    _completion_length,
    _conversation_length,
    _modules_in_full,
    _adapter,
)
