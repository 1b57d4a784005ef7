"""The trainer of a tiny run in this process, with prompts and rewards that a test writes down."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from posttrain.config.load import load_config
from posttrain.conversation.encoder import conversation_encoder
from posttrain.dataserver.schemas import (
    Component,
    DatasetMeta,
    GradeItem,
    GradeResult,
    Limits,
    Meta,
    Sample,
    Split,
    StageMeta,
    WireMessage,
)
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.load import choose_backend
from posttrain.rl.clock import Clock
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.curriculum import clock_of
from posttrain.runs.counters import RunCounters
from posttrain.runs.directory import RunDirectory

Rewards = Sequence[float | None]
# Trainers can be used until the tests end.
_OPENED = ExitStack()


class WrittenServer:
    """Speaks the client's protocol: each prompt is its own number, and each completion gets the next reward.

    A reward of None is an abstention. `texts` replaces the prompts of some slots.
    """

    def __init__(self, rewards: Rewards = (), texts: dict[int, str] | None = None) -> None:
        self.rewards = list(rewards)
        self.texts = texts or {}
        self.graded: list[tuple[int, str, list[GradeItem]]] = []

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        return [
            Sample(
                sample_id=f"{split}:{iteration}:{slot}",
                dataset="a",
                slot=slot,
                messages=[WireMessage(role="user", content=self.texts.get(slot, f"Say {iteration} and {slot}."))],
            )
            for slot in range(offset, offset + batch_size)
        ]

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        self.graded.append((iteration, label, list(items)))
        return [_result(item, self.rewards[number]) for number, item in enumerate(items)]


def _result(item: GradeItem, reward: float | None) -> GradeResult:
    score = Component(score=reward, weight=1.0, status="ok" if reward is not None else "abstain", ms=0.0)
    status, reason = ("ok", "") if reward is not None else ("abstain", "it cannot be judged")
    return GradeResult(item_id=item.item_id, status=status, reward=reward, reason=reason, components={"it": score})


def a_meta(clock: Clock, **changes: Any) -> Meta:
    """What a dataserver says of itself that fits the clock: 8 iterations, 10 rows, and 10 held out."""
    stage = StageMeta(name="one", from_iteration=0, until_iteration=8, mix={"a": 1.0}, graders={}, gates={})
    fields: dict[str, Any] = {
        "protocol_version": "1.0",
        "server_version": "0",
        "config_id": "written",
        "seed": 0,
        "prompts_per_iteration": clock.prompts_per_iteration,
        "iteration_stride": clock.iteration_stride,
        "total_iterations": 8,
        "adaptive": False,
        "stages": [stage],
        "datasets": [DatasetMeta(name="a", rows=10, validation_rows=10, digest="")],
        "graders": {},
        "limits": Limits(
            max_batch_size=64, max_items=64, max_body_bytes=10**6, max_completion_chars=10**5, grade_timeout_seconds=1
        ),
    }
    return Meta(**{**fields, **changes})


def a_trainer(config: Path, server: WrittenServer, *overrides: str) -> Any:
    """A trainer of a run's config, without dropout and in float32, ready to take a micro-batch."""
    exact = ("model.dtype=float32", "lora.dropout=0", *overrides)
    settings = load_config(config, RLConfig, list(exact))
    loaded = load(settings)
    from posttrain.rl.build import open_trainer
    from posttrain.rl.run_plan import RunPlan

    clock = clock_of(settings)
    run = RunDirectory(config.parent / "runs" / config.stem)
    plan = RunPlan(settings, clock, a_meta(clock), 8, run)
    encoder = conversation_encoder(settings.chat, loaded.tokenizer)
    client: Any = server
    trainer: Any = _OPENED.enter_context(open_trainer(plan, loaded, encoder, client, RunCounters()))
    # As the trainer's own loop does at the start of each optimizer step.
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def load(settings: RLConfig) -> LoadedModel:
    """The model of a config, as training has it; adapters begin where they change nothing, so they are moved."""
    backend = choose_backend(settings.model)
    loaded = backend.load_for_training(
        settings.model,
        settings.lora,
        settings=TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0),
    )
    move_adapter(loaded.model)
    return loaded


def move_adapter(model: Any) -> None:
    """Change the trained adapter, and no copy of it, by random amounts."""
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B.default" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)


def first_generation(trainer: Any) -> dict[str, Any]:
    """What the trainer makes of its first rows: the two prompts of step 0, four completions each, with advantages."""
    rows = [{"prompt": str(row)} for row in (0, 1) for _ in range(4)]
    torch.manual_seed(1)  # the dropout of the old policy's probabilities, where they are wanted
    return trainer._generate_and_score_completions(rows)


def gradients(trainer: Any, batch: dict[str, Any], seed: int = 0) -> torch.Tensor:
    """The gradient of the loss on a batch as one vector; `seed` is that of the dropout."""
    trainer.model.zero_grad()
    torch.manual_seed(seed)
    trainer._compute_loss(trainer.model, batch).backward()
    return torch.cat([each.grad.flatten().clone() for each in trainer.model.parameters() if each.requires_grad])
