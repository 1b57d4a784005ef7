"""Recipes of tiny runs in this process, with prompts and rewards set by the test."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from in_process import start
from posttrain.config.load import load_config
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
from posttrain.rl.client.connection import Connection, ServerRecord
from posttrain.rl.config import RLConfig
from posttrain.rl.generation import MicroBatch
from posttrain.rl.recipe import RLRecipe
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.rl.train import open_recipe, open_session
from posttrain.runs.directory import RunDirectory
from posttrain.train.parallel.ranks import connect

Rewards = Sequence[float | None]
# Keeps recipes open until the tests end.
_OPENED = ExitStack()


class WrittenServer:
    """A fake client: prompts contain their iteration and slot, and completions get `rewards` in order.

    A reward of None is an abstention. `texts` overrides the prompts of some slots.
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

    def substitutes(self, iteration: int, slots: Sequence[int], attempt: int) -> list[Sample]:
        made = self.sample(iteration, 0, max(slots) + 1)
        return [made[slot].model_copy(update={"sample_id": f"{made[slot].sample_id}:{attempt}"}) for slot in slots]

    def report_step(self, *_: Any) -> None:
        pass

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        self.graded.append((iteration, label, list(items)))
        return [_result(item, self.rewards[number]) for number, item in enumerate(items)]


def _result(item: GradeItem, reward: float | None) -> GradeResult:
    score = Component(score=reward, weight=1.0, status="ok" if reward is not None else "abstain", ms=0.0)
    status, reason = ("ok", "") if reward is not None else ("abstain", "it cannot be judged")
    return GradeResult(item_id=item.item_id, status=status, reward=reward, reason=reason, components={"it": score})


def a_meta(schedule: RolloutSchedule, **changes: Any) -> Meta:
    """Dataserver metadata that fits the schedule: 8 iterations, 10 rows and 10 held-out rows."""
    stage = StageMeta(name="one", from_iteration=0, until_iteration=8, mix={"a": 1.0}, graders={}, gates={})
    fields: dict[str, Any] = {
        "protocol_version": "1.1",
        "substitutes": 4,
        "server_version": "0",
        "config_id": "written",
        "seed": 0,
        "prompts_per_iteration": schedule.prompts_per_iteration,
        "iteration_stride": schedule.iteration_stride,
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


def a_recipe(
    config: Path, server: WrittenServer, *overrides: str, move: bool = True, checkpoint: Path | None = None
) -> RLRecipe:
    """The recipe of a run's config, in float32 unless overridden, with the generations of a checkpoint.

    A new adapter changes nothing, so this one is moved once the recipe has seen its initial weights.
    """
    settings = load_config(config, RLConfig, ["model.dtype=float32", *overrides])
    loaded = load(settings)
    recipe = _opened(settings, server, loaded, RunDirectory(config.parent / "runs" / config.stem), checkpoint)
    if move:
        move_adapter(loaded.model)
    loaded.model.train()
    return recipe


def train_written(
    config: Path, server: WrittenServer, *overrides: str, change: Callable[[LoadedModel], None] = lambda loaded: None
) -> RunDirectory:
    """Train a whole run in this process, after `change` has modified the model; returns the run directory."""
    settings = load_config(config, RLConfig, ["model.dtype=float32", *overrides])
    schedule, steps = RolloutSchedule.of(settings), settings.training.max_steps or 8
    run = RunDirectory(config.parent / "runs" / config.stem)
    run.path.mkdir(parents=True)
    connection = _connection(server, a_meta(schedule, total_iterations=steps))
    session = open_session(settings, schedule, run, connection, steps)
    with session.model(start(), resume=False) as loaded:
        move_adapter(loaded.model)
        change(loaded)
        accelerator = connect()
        with open_recipe(settings, run, connection, steps, loaded, accelerator, None) as recipe:
            session.train(recipe, accelerator, loaded, start())
    return run


def _connection(server: WrittenServer, meta: Meta) -> Connection:
    client: Any = server
    return Connection(client, meta, ServerRecord("written", meta.config_id))


def _opened(
    settings: RLConfig, server: WrittenServer, loaded: LoadedModel, run: RunDirectory, checkpoint: Path | None
) -> RLRecipe:
    schedule = RolloutSchedule.of(settings)
    connection = _connection(server, a_meta(schedule))
    return _OPENED.enter_context(open_recipe(settings, run, connection, 8, loaded, connect(), checkpoint))


def load(settings: RLConfig) -> LoadedModel:
    """Load a config's model as for training."""
    return choose_backend(settings.model).load_for_training(
        settings.model,
        settings.lora,
        settings=TrainingSettings(
            chatml=True,
            max_length=64,
            gradient_checkpointing=False,
            seed=0,
            padding_free=settings.training.padding_free,
        ),
    )


def move_adapter(model: Any, by: float = 0.1) -> None:
    """Perturb the trained adapter at random, but no copy of it."""
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B.default" in name:
            parameter.data += by * torch.randn(parameter.shape, generator=draw)


def loss_and_gradient(recipe: RLRecipe, micro_batches: Sequence[MicroBatch]) -> tuple[float, torch.Tensor]:
    """The total loss of some micro-batches of a step, and its gradient as one vector."""
    model = recipe.loaded.model
    model.zero_grad()
    total = 0.0
    for each in micro_batches:
        loss = recipe.loss(model, each)
        loss.backward()
        total += loss.item()
    trained = [each for each in model.parameters() if each.requires_grad]
    return total, torch.cat([each.grad.flatten().clone() for each in trained if each.grad is not None])


def logprobs_by_hand(model: Any, rollout: Rollout) -> torch.Tensor:
    """log p of the tokens of one completion, computed alone and without padding; shape [tokens]."""
    ids = torch.tensor([*rollout.prompt.ids, *rollout.ids])
    logits = model(input_ids=ids[None]).logits[0, len(rollout.prompt.ids) - 1 : -1]
    return logits.log_softmax(dim=-1).gather(1, torch.from_numpy(rollout.ids)[:, None]).squeeze(1)


def gradient_by_hand(recipe: RLRecipe, weights: list[torch.Tensor]) -> torch.Tensor:
    """The gradient of −Σ w·log p over all tokens of the generation."""
    assert recipe.generation is not None
    model = recipe.loaded.model
    model.zero_grad()
    for rollout, weight in zip(recipe.generation.rollouts, weights, strict=True):
        (-weight * logprobs_by_hand(model, rollout)).sum().backward()
    return torch.cat([each.grad.flatten().clone() for each in model.parameters() if each.requires_grad])
