"""The prompts of reinforcement learning, drawn once more from the dataserver's config, without a server."""

from posttrain.base.extras import require_extra
from posttrain.config.load import load_config
from posttrain.data.curriculum.order_hash import OrderHash
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.schemas import Meta
from posttrain.inspect.finding import Replay, Report
from posttrain.inspect.folders import KeptRun
from posttrain.models.load import choose_backend
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.prompt_order import prompt_hash_after
from posttrain.rl.schedule import RolloutSchedule
from posttrain.rl.train import run_identity


def replay_prompts(run: KeptRun, report: Report) -> Replay:
    """The identity of a run, and hash of each step that it did.

    The order is known where the run started its dataserver itself, and which rows are asked does not depend on earlier
    grades.

    Raises:
        ConfigError, DataError, ModelError: config, data or tokenizer cannot be read.
    """
    config = load_config(run.directory.config, RLConfig)
    if config.dataserver.config is None:
        where = f"the prompts came from the server at {config.dataserver.url}, of which this machine has no config"
        return Replay(None, None, where)
    require_extra("server", "toolkit-runs verify of reinforcement learning")
    from posttrain.dataserver.runtime import Loaded

    loaded = Loaded.read(load_config(config.dataserver.config, DataserverConfig), report)
    identity = _identity(config, loaded.meta)
    if loaded.config.adaptive is not None:
        return Replay(identity, None, "adaptive sampling made it depend on what was graded, which only the journal has")
    schedule = RolloutSchedule.of(config)

    def sample_ids(generation: int) -> list[str]:
        """Those of the prompts of a generation."""
        iteration = schedule.iteration_of(generation)
        slots = loaded.sampler.slots(iteration, 0, schedule.prompts_per_iteration, "train")
        return [loaded.samples.sample_id(slot.dataset, slot.index) for slot in slots]

    order_hash, steps = OrderHash().state(), []
    for step in range(len(run.steps)):
        if schedule.starts_generation(step):
            order_hash = prompt_hash_after(order_hash, sample_ids(schedule.generation_of(step)))
        steps.append({"order_hash": order_hash})
    return Replay(identity, steps)


def _identity(config: RLConfig, meta: Meta) -> dict[str, object]:
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    return run_identity(config, meta, tokenizer)
