"""The sections of a training config that commands read which use its model."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import ConfigDict

from posttrain.base.text import as_shown
from posttrain.config.keys import read_dotted, shortened, shown
from posttrain.config.load import load_config, read_raw
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.sections.model import OneOrSeveralModels
from posttrain.config.sections.run import RunConfig
from posttrain.errors import ConfigError


class InferenceConfig(OneOrSeveralModels):
    """The sections that loading and asking a model needs; the trainer checks the others."""

    model_config = ConfigDict(extra="ignore")

    chat: ChatConfig = ChatConfig()
    """Template and length limit."""

    on_bad_record: OnBadRecord = "error"
    """Whether an input row that cannot be answered stops the command, or is skipped and reported."""

    run: RunConfig = RunConfig()
    """Run directory, checkpoints and trackers."""

    generation: GenerationConfig = GenerationConfig()
    """How answers are sampled."""


def load_inference_config(path: Path, overrides: Sequence[str] = ()) -> InferenceConfig:
    """Load a training config.

    Raises:
        ConfigError: as `load_config`; or a `--set` names a section that is not read here; or the file has an unknown
            section whose name resembles a known one, since no trainer may have checked the file yet.
    """
    known = list(InferenceConfig.model_fields)
    for override in overrides:
        if section_of(override) not in (*known, None):
            raise ConfigError(f"--set {shortened(override)}: this command reads only {', '.join(known)}")
    for name in read_raw(path):
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        if near and name not in known:
            raise ConfigError(f"{as_shown(path)}: unknown section {shown(name)}; did you mean {near[0]!r}?")
    return load_config(path, InferenceConfig, overrides)


def section_of(override: str) -> str | None:
    """The section that a `--set` names; None if it is not written as key=value."""
    head = read_dotted(override)
    return head[0][0] if head else None
