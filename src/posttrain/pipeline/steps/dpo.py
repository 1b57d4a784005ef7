"""Step `dpo`: preference optimisation."""

from typing import Any, ClassVar, Literal

from posttrain.config.load import Override, load_config
from posttrain.errors import ConfigError
from posttrain.pipeline.steps.training import TrainingStep


class DPOStep(TrainingStep):
    """Runs `toolkit-dpo`."""

    run: Literal["dpo"]
    """Preference optimisation."""

    program: ClassVar[str] = "dpo"

    def read(self, overrides: list[Override]) -> Any:
        """Load the config; ConfigError if it is wrong, or names several models."""
        from posttrain.dpo.config.dpo import DPOConfig

        config = load_config(self.config, DPOConfig, overrides)
        if config.models:
            raise ConfigError(f"{self.config}: models: a step trains one model; make a step for each")
        return config
