"""`run.trackers`: names or sections, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.trackers import MLflowConfig, TensorBoardConfig, TrackioConfig, WandBConfig
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "runs.md"


class Config(StrictModel):
    """A config with a run."""

    run: RunConfig = RunConfig()
    """The run."""


def read(folder: Path, trackers: Any) -> Config:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"run": {"trackers": trackers}}))
    return load_config(file, Config)


def test_a_name_is_a_section_with_the_defaults(tmp_path: Path) -> None:
    named = read(tmp_path, ["tensorboard", "wandb", "trackio", "mlflow"])
    assert named.run.trackers == (
        TensorBoardConfig(kind="tensorboard"),
        WandBConfig(kind="wandb", project="posttrain"),
        TrackioConfig(kind="trackio", project="posttrain"),
        MLflowConfig(kind="mlflow", experiment="posttrain"),
    )


def test_the_example_of_the_page_is_read_and_written_back(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(run:\n  trackers:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    config = read(tmp_path, yaml.safe_load(example)["run"]["trackers"])
    _, wandb, _, mlflow = config.run.trackers
    assert wandb == WandBConfig(kind="wandb", project="word-problems", entity="my-team", tags=("lora", "small"))
    assert mlflow.model_dump()["tags"] == {"team": "maths"}
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again, Config).run.trackers == config.run.trackers


@pytest.mark.parametrize(
    ("trackers", "told"),
    [
        (["wandbb"], r"trackers\.0\.kind: should be one of: tensorboard, wandb, .*did you mean wandb"),
        ([{"project": "mine"}], r"trackers\.0\.kind: missing"),
        ([{"kind": "wandb", "projct": "mine"}], r"trackers\.0\.projct: unknown key; did you mean project"),
        ([{"kind": "trackio", "tags": ["a"]}], r"trackers\.0\.tags: unknown key"),
        ([{"kind": "wandb", "project": ""}], r"trackers\.0\.project: should have at least 1 character"),
        ([{"kind": "wandb", "tags": ["a\x1b[2J"]}], r"trackers\.0\.tags\.0: .*plain text"),
        (["wandb", {"kind": "wandb", "project": "mine"}], "wandb is there 2 times"),
        ([{"kind": "mlflow", "uri": "postgresql://me:word@host/db"}], "holds a password; set MLFLOW_TRACKING_USERNAME"),
        ([{"kind": "mlflow", "uri": "https://word@host"}], "holds a password"),
        ("wandb", "should be a list"),
    ],
)
def test_what_makes_no_sense_is_refused_without_showing_a_password(tmp_path: Path, trackers: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        read(tmp_path, trackers)
    assert ":word@" not in str(refused.value) and "//word@" not in str(refused.value)
