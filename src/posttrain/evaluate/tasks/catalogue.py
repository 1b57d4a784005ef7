"""All evaluation tasks, as a union of config sections by `type`."""

from typing import Annotated

from pydantic import Field

from posttrain.evaluate.tasks.choice import ChoiceTaskConfig
from posttrain.evaluate.tasks.graded import AnyGradedTask
from posttrain.evaluate.tasks.lm_eval import LmEvalTaskConfig
from posttrain.evaluate.tasks.loss import LossTaskConfig

AnyTask = Annotated[AnyGradedTask | ChoiceTaskConfig | LossTaskConfig | LmEvalTaskConfig, Field(discriminator="type")]
