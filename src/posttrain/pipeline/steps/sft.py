"""Step `sft`: supervised fine-tuning."""

from typing import Any, ClassVar, Literal

from posttrain.config.load import Override, load_config
from posttrain.pipeline.steps.training import TrainingStep


class SFTStep(TrainingStep):
    """Runs `toolkit-sft`."""

    run: Literal["sft"]
    """Supervised fine-tuning."""

    program: ClassVar[str] = "sft"

    def read(self, overrides: list[Override]) -> Any:
        """Load the config; ConfigError if it is wrong."""
        from posttrain.sft.config import SFTConfig

        return load_config(self.config, SFTConfig, overrides)
