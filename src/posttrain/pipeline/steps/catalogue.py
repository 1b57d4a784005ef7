"""All steps of a pipeline, as a union of config sections by `run`."""

from typing import Annotated

from pydantic import Field

from posttrain.pipeline.steps.command import CommandStep
from posttrain.pipeline.steps.decide import DecideStep
from posttrain.pipeline.steps.dpo import DPOStep
from posttrain.pipeline.steps.eval import EvalStep
from posttrain.pipeline.steps.export import ExportStep
from posttrain.pipeline.steps.make_data import DataStep
from posttrain.pipeline.steps.merge import MergeStep
from posttrain.pipeline.steps.predict import PredictStep
from posttrain.pipeline.steps.push import PushStep
from posttrain.pipeline.steps.rl_train import RLTrainStep
from posttrain.pipeline.steps.sft import SFTStep

AnyStep = Annotated[
    SFTStep
    | DPOStep
    | RLTrainStep
    | MergeStep
    | EvalStep
    | PredictStep
    | DataStep
    | DecideStep
    | ExportStep
    | PushStep
    | CommandStep,
    Field(discriminator="run"),
]
