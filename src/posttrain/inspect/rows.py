"""The rows of supervised fine-tuning and of preference optimisation, drawn once more."""

from typing import Any

from posttrain.config.load import load_config
from posttrain.data.curriculum.order_hash import OrderHash
from posttrain.data.step_plan import StepPlanner
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import prepare_data as prepare_preferences
from posttrain.dpo.train import run_identity as preference_identity
from posttrain.inspect.finding import Replay, Report
from posttrain.inspect.folders import KeptRun
from posttrain.models.load import choose_backend
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import prepare_data
from posttrain.sft.train import run_identity


def replay_rows(run: KeptRun, report: Report) -> Replay:
    """The identity of a run, and hash and tokens of each step that it did.

    Raises:
        ConfigError, DataError, ModelError: config, data or tokenizer cannot be read.
    """
    if run.kind == "sft":
        config = load_config(run.directory.config, SFTConfig)
        tokenizer = _tokenizer(config)
        data = prepare_data(config, tokenizer, report)
        identity = run_identity(config, data, tokenizer)
    else:
        config = load_config(run.directory.config, DPOConfig)
        tokenizer = _tokenizer(config)
        data = prepare_preferences(config, tokenizer, report)
        identity = preference_identity(config, data, tokenizer)
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    planner = StepPlanner(data.curriculum, sizes, config.training.micro_batch_size)
    order_hash, steps = OrderHash(), []
    for step in range(min(len(run.steps), data.curriculum.total_steps)):
        plan = planner.plan(step)
        hash_ = order_hash.update(plan.draws)
        steps.append({"order_hash": hash_, "tokens": plan.tokens, "trained_tokens": plan.trained_tokens})
    return Replay(identity, steps)


def _tokenizer(config: SFTConfig | DPOConfig) -> Any:
    return choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
