"""What a trained model was made from, as a hub knows it: the base's id and its licence."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.location import PACKAGED, locate_model

_LICENCE_KEY = "general.license"


@dataclass(frozen=True)
class BaseModel:
    """The base of a trained model.

    Attributes:
        name: what the run calls it; never a path.
        repo: its Hugging Face id, if it has one; where the user says it, the run may have used a copy.
        revision: of `repo`.
        licence: in the hub's spelling.
    """

    name: str
    repo: str | None
    revision: str | None
    licence: str


def base_model(
    model: ModelConfig, repo: str | None, licence: str | None, ask: Callable[[str], str | None]
) -> BaseModel:
    """What is known about the base of a run.

    Args:
        model: the run's own section.
        repo, licence: what the user says; None to find it out.
        ask: gives the licence that the hub's card of a model names.

    Raises:
        ConfigError: the licence cannot be found out.
    """
    location = locate_model(model.name)
    is_on_hub = location.kind == "hub"
    found = repo or (model.name if is_on_hub else None)
    known = licence or _own_licence(location.kind, Path(location.path)) or (ask(found) if found else None)
    if not known:
        raise ConfigError(
            f"the licence of the base {_short(model.name)} is not known, and what was trained on it may only be passed "
            "on under it; read the base's page and say it with --license, or run.push.license, such as apache-2.0"
        )
    own = model.name if is_on_hub or model.name in PACKAGED else _short(model.name)
    return BaseModel(own, found, model.revision if found == model.name else None, known)


def require_base(base: BaseModel, key: str) -> None:
    """Raise ConfigError if the base has no id: an adapter is of use only to who has its base.

    `key` is where the user can say it.
    """
    if base.repo is None:
        raise ConfigError(
            f"an adapter names its base, but {base.name} is known here only as local files; say its Hugging Face id "
            f"with {key}, or push the merged model with toolkit-push --weights merged"
        )


def _own_licence(kind: str, path: Path) -> str | None:
    """The licence that the model's own files name: the card in a folder, or the data in a GGUF file."""
    if kind == "folder" and (path / "README.md").is_file():
        from huggingface_hub import metadata_load

        named = (metadata_load(path / "README.md") or {}).get("license")
        return named if isinstance(named, str) else None
    if kind == "gguf":
        from gguf import GGUFReader

        field = GGUFReader(path).fields.get(_LICENCE_KEY)
        named = field.contents() if field is not None else None
        return named if isinstance(named, str) else None
    return None


def _short(name: str) -> str:
    """The last part of a path: where a model lies on this machine is nobody's business."""
    return PurePath(name).name
