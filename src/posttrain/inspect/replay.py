"""Recompute the row order of a run from its config and data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.base.extras import require_extra
from posttrain.config.load import load_config
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.order_hash import OrderHash
from posttrain.data.curriculum.step_plan import StepPlanner
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import prepare_data as prepare_preferences
from posttrain.dpo.train import run_identity as dpo_identity
from posttrain.inspect.folders import KeptRun
from posttrain.models.load import choose_backend
from posttrain.rl.config import RLConfig
from posttrain.rl.schedule import RolloutSchedule, prompt_hash_after
from posttrain.rl.train import run_identity as rl_identity
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import prepare_data
from posttrain.sft.train import run_identity as sft_identity

Report = Callable[[str], None]
"""Receives one line about anything that takes time."""


@dataclass(frozen=True)
class Replay:
    """What config and data yield today.

    Attributes:
        identity: in the manifest's form; None if it cannot be known.
        steps: what metrics.jsonl should say of each optimizer step, from the first; None if that cannot be known, with
            the reason in `why_not`.
    """

    identity: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]] | None
    why_not: str = ""


def replay_rows(run: KeptRun, report: Report) -> Replay:
    """Recompute the identity of a run that trains on rows or pairs, and the order hash and tokens of each step done.

    Raises:
        ConfigError, DataError, ModelError: config, data or tokenizer cannot be read.
    """
    if run.kind == "sft":
        config = load_config(run.directory.config, SFTConfig)
        tokenizer = _tokenizer(config)
        data = prepare_data(config, tokenizer, report)
        identity = sft_identity(config, data, tokenizer)
    else:
        config = load_config(run.directory.config, DPOConfig)
        tokenizer = _tokenizer(config)
        data = prepare_preferences(config, tokenizer, report)
        identity = dpo_identity(config, data, tokenizer)
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    planner = StepPlanner(data.curriculum, sizes, MicroBatchSize.of(config.training, padding_free=False))
    order_hash, steps = OrderHash(), []
    for step in range(min(len(run.steps), data.curriculum.total_steps)):
        plan = planner.plan(step)
        hash_ = order_hash.update(plan.draws)
        steps.append({"order_hash": hash_, "tokens": plan.tokens, "trained_tokens": plan.trained_tokens})
    return Replay(identity, steps)


def replay_prompts(run: KeptRun, report: Report) -> Replay:
    """Recompute the identity of a reinforcement learning run, and the order hash of each step done.

    The order is known only if the run started its dataserver itself and the choice of rows does not depend on earlier
    grades.

    Raises:
        ConfigError, DataError, ModelError: config, data or tokenizer cannot be read.
    """
    config = load_config(run.directory.config, RLConfig)
    if config.dataserver.config is None:
        where = f"the prompts came from the server at {config.dataserver.url}, whose config is not on this machine"
        return Replay(None, None, where)
    require_extra("server", "toolkit-runs verify of a reinforcement learning run")
    from posttrain.dataserver.config.dataserver import DataserverConfig
    from posttrain.dataserver.runtime import Loaded

    loaded = Loaded.read(load_config(config.dataserver.config, DataserverConfig), report)
    identity = rl_identity(config, loaded.meta, _tokenizer(config))
    if run.manifest["identity"].get("rollouts_from") is not None:
        del identity["rollouts_from"]  # another folder, which may be gone
        return Replay(identity, None, "the prompts are those of the run whose rollouts were trained on")
    if loaded.config.adaptive is not None:
        return Replay(identity, None, "with adaptive sampling it depends on earlier grades, which only the journal has")
    schedule = RolloutSchedule.of(config)

    def sample_ids(generation: int) -> list[str]:
        """The sample ids of a generation's prompts."""
        iteration = schedule.iteration_of(generation)
        slots = loaded.sampler.slots(iteration, 0, schedule.prompts_per_iteration, "train")
        return [loaded.samples.sample_id(slot.dataset, slot.index) for slot in slots]

    order_hash, steps = OrderHash().state(), []
    for step in range(len(run.steps)):
        if schedule.starts_generation(step):
            order_hash = prompt_hash_after(order_hash, sample_ids(schedule.generation_of(step)))
        steps.append({"order_hash": order_hash})
    return Replay(identity, steps)


def _tokenizer(config: SFTConfig | DPOConfig | RLConfig) -> Any:
    return choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
