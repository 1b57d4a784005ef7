"""Choose and make the engine for rollouts."""

from toolkit.core.models.base import LoadedModel
from toolkit.inference.hf import HfEngine
from toolkit.rl.config.rl import RLConfig
from toolkit.rl.engines import RolloutEngine, TrainingModelEngine


def rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int]) -> RolloutEngine:
    """The engine that `rollout.engine` names, for the model that is trained; `end_ids` end a completion."""
    engine = HfEngine(loaded.model, loaded.tokenizer, end_ids, config.rollout.batch_size)
    return TrainingModelEngine(loaded.model, engine, loaded.compute_dtype)
