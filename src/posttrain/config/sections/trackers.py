"""Config of `run.trackers`: which services get the metrics of a run, and where they keep them."""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from posttrain.base.secrets import without_passwords
from posttrain.config.strict import StrictModel
from posttrain.config.values import one_line

TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]
"""The kinds of trackers; each is also the name of its module and of the extra that installs it."""

Name = Annotated[str, Field(min_length=1), AfterValidator(one_line)]
_PROJECT = "posttrain"


class TensorBoardConfig(StrictModel):
    """TensorBoard; its files are in the run's folder."""

    kind: Literal["tensorboard"]
    """Event files for TensorBoard, in `<run>/tensorboard`."""


class WandBConfig(StrictModel):
    """Weights & Biases, online, or offline with `WANDB_MODE=offline`; its files are in the run's folder."""

    kind: Literal["wandb"]
    """Weights & Biases; the key is in `WANDB_API_KEY`, or `wandb login` has stored it."""

    project: Name = _PROJECT
    """Project that contains the run."""

    entity: Name | None = None
    """User or team that owns the project; by default that of the key."""

    tags: tuple[Name, ...] = ()
    """Tags of the run."""


class TrackioConfig(StrictModel):
    """Trackio, in its own local database."""

    kind: Literal["trackio"]
    """Trackio; `trackio show` is its dashboard."""

    project: Name = _PROJECT
    """Project that contains the run."""


def _without_password(address: str) -> str:
    if without_passwords(address) != address:
        raise ValueError(
            "holds a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or put the whole address "
            "into MLFLOW_TRACKING_URI and leave uri out"
        )
    return address


class MLflowConfig(StrictModel):
    """MLflow, in a database file or on a server."""

    kind: Literal["mlflow"]
    """MLflow; user name, password or token are in its own variables, such as `MLFLOW_TRACKING_TOKEN`."""

    uri: Annotated[str, Field(min_length=1), AfterValidator(one_line), AfterValidator(_without_password)] | None = None
    """Where MLflow keeps its runs, such as `http://localhost:5000` or `sqlite:////home/me/mlflow.db`; by default
    `MLFLOW_TRACKING_URI`, or else `mlflow.db` in the current folder."""

    experiment: Name = _PROJECT
    """Experiment that contains the run."""

    tags: dict[Name, Name] = Field(default_factory=dict[str, str])
    """Tags of the run: names and values."""


_ByKind = Annotated[
    TensorBoardConfig | WandBConfig | TrackioConfig | MLflowConfig,
    Field(discriminator="kind"),
]


def _by_name(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


TrackerConfig = Annotated[_ByKind, BeforeValidator(_by_name, json_schema_input_type=TrackerName | _ByKind)]
"""A tracker: its name, or a section with `kind` and options."""


def require_each_once(trackers: tuple[TrackerConfig, ...]) -> tuple[TrackerConfig, ...]:
    """Return the trackers; ValueError if a kind is there twice."""
    kinds = [tracker.kind for tracker in trackers]
    for name in get_args(TrackerName):
        if kinds.count(name) > 1:
            raise ValueError(f"{name} is there {kinds.count(name)} times; name each tracker once")
    return trackers
