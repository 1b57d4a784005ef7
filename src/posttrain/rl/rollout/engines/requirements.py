"""Check, before a model is loaded, what its rollout engine will need: room for the weights, and servers that fit."""

from pathlib import Path

from posttrain.inference.weight_sync import require_room
from posttrain.models.backend import LoadedModel, training_device
from posttrain.models.load import choose_backend
from posttrain.models.model_shape import TrainedModel
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.engines.open import engine_weights
from posttrain.rl.rollout.engines.servers import require_servers_fit


def require_engine_fits(config: RLConfig, run: Path, steps: int) -> list[str]:
    """Check what can be told from the model's config alone; opening the engine checks it again.

    Nothing is checked for a model whose shape its config does not tell, such as a quantised one.

    Args:
        run: the run's directory.
        steps: optimizer steps of the run.

    Returns:
        Why servers could not be checked: they do not answer yet.

    Raises:
        ConfigError: there is no room for the weights, the engine cannot get them, or a server lacks what the run needs.
        ServerError: a server refuses to tell.
    """
    rollout = config.rollout
    model = outlined_model(config, steps) if rollout.has_weights else None
    if model is None:
        return []
    weights = engine_weights(config, model)
    require_room(weights, run, rollout.weight_versions)
    return require_servers_fit(config, model, weights) if rollout.traits.is_server else []


def outlined_model(config: RLConfig, steps: int) -> LoadedModel | None:
    """The model as it is trained, on torch's meta device; None if its config does not tell its shape."""
    try:
        trained = TrainedModel.of(config, steps)
        model = trained.build("meta")
    except Exception:  # noqa: BLE001  # whatever a model's own code raises, it may be loaded all the same
        return None
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    return LoadedModel(model, tokenizer, training_device(), trained.dtype, trained.new_ids)
