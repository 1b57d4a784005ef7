"""Step `rl-train`: reinforcement learning."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from posttrain.config.load import Override, load_config
from posttrain.pipeline.overlap import Prompts, served_prompts
from posttrain.pipeline.resolved import dataserver_facts
from posttrain.pipeline.steps.training import TrainingStep

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context


class RLTrainStep(TrainingStep):
    """Runs `toolkit-rl-train`."""

    run: Literal["rl-train"]
    """Reinforcement learning with a dataserver."""

    program: ClassVar[str] = "rl-train"

    def read(self, overrides: list[Override]) -> Any:
        """Load the config; ConfigError if it is wrong."""
        from posttrain.rl.config import RLConfig

        return load_config(self.config, RLConfig, overrides)

    def trained(self, name: str, context: "Context") -> Prompts:
        """The prompts of the dataserver's config that are not held out; those of a running server are not known."""
        path = self.read(self.overrides(name, context)).dataserver.config
        if path is None:
            return iter([("the prompts of a dataserver that is running", None)])
        return served_prompts(path, None, "train")

    def held_out(self, name: str, context: "Context") -> Prompts:
        """The prompts that the dataserver's config holds out, if they are measured."""
        config = self.read(self.overrides(name, context))
        path = config.dataserver.config
        if path is not None and config.evaluation is not None:
            yield from served_prompts(path, None, "validation")

    def require_data(self, config: Any, context: "Context") -> None:
        """The dataserver's files are read with its config."""

    def named_configs(self, config: Any) -> dict[str, Any]:
        """What the dataserver's config says; ConfigError if it is wrong."""
        path = config.dataserver.config
        return {} if path is None else {"dataserver.config": dataserver_facts(path)}
