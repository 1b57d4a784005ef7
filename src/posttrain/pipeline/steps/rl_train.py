"""Step `rl-train`: reinforcement learning."""

from typing import Any, ClassVar, Literal

from posttrain.config.load import Override, load_config
from posttrain.pipeline.resolved import dataserver_facts
from posttrain.pipeline.steps.training import TrainingStep


class RLTrainStep(TrainingStep):
    """Runs `toolkit-rl-train`."""

    run: Literal["rl-train"]
    """Reinforcement learning with a dataserver."""

    program: ClassVar[str] = "rl-train"

    def read(self, overrides: list[Override]) -> Any:
        """Load the config; ConfigError if it is wrong."""
        from posttrain.rl.config import RLConfig

        return load_config(self.config, RLConfig, overrides)

    def named_configs(self, config: Any) -> dict[str, Any]:
        """What the dataserver's config says; ConfigError if it is wrong."""
        path = config.dataserver.config
        return {} if path is None else {"dataserver.config": dataserver_facts(path)}
