"""The config file of `toolkit-pipeline`."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from posttrain.config.sections.run import require_run_name
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine
from posttrain.dataserver.config.names import Fault, refuse
from posttrain.pipeline.expansion.rounds import RoundsConfig, with_rounds
from posttrain.pipeline.expansion.sweep import SweepConfig, with_sweep
from posttrain.pipeline.steps.base import StepConfig, name_fault
from posttrain.pipeline.steps.catalogue import AnyStep


class PipelineConfig(StrictModel):
    """Steps from a base model to a decision, run one after another; only what changed runs again."""

    output_dir: ConfigPath = Path("runs")
    """Folder that contains the pipeline's own folder."""

    name: OneLine | None = None
    """Name of the pipeline's folder; by default the config file's name without its extension."""

    steps: dict[OneLine, AnyStep] = Field(min_length=1)
    """The steps by name, in any order."""

    rounds: RoundsConfig | None = None
    """Steps that are repeated; null repeats none."""

    sweep: SweepConfig | None = None
    """Settings to try for one step; null tries none."""

    allow_overlap: bool = False
    """Allow held-out prompts that a step trains on; otherwise the pipeline does not start."""

    @field_validator("name")
    @classmethod
    def _name_is_a_folders(cls, name: str | None) -> str | None:
        return name if name is None else require_run_name(name)

    @field_validator("steps")
    @classmethod
    def _names_fit(cls, steps: dict[str, AnyStep]) -> dict[str, AnyStep]:
        refuse(fault for name in steps if (fault := name_fault(name)) is not None)
        return steps

    @model_validator(mode="after")
    def _steps_fit(self) -> "PipelineConfig":
        steps = self.all_steps()
        refuse(
            Fault(("steps", name) if name in self.steps else (), name, _unknown(needed, steps))
            for name, step in steps.items()
            for needed in step.needs
            if needed not in steps
        )
        try:
            TopologicalSorter({name: step.needs for name, step in steps.items()}).prepare()
        except CycleError as error:
            raise ValueError(f"the steps need each other in a circle: {' → '.join(reversed(error.args[1]))}") from None
        return self

    def all_steps(self) -> dict[str, StepConfig]:
        """The steps by name, with those of all rounds and of the sweep; ValueError if these do not fit."""
        steps: dict[str, StepConfig] = dict(self.steps)
        if self.rounds is not None:
            steps = with_rounds(steps, self.rounds)
        return steps if self.sweep is None else with_sweep(steps, self.sweep)


def _unknown(needed: str, steps: dict[str, StepConfig]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(needed, steps, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(steps)}"
    return f"there is no step {needed!r}{hint}"
