"""One line instead of an ImportError where an optional part of the installation is missing."""

from importlib.util import find_spec

from toolkit.errors import ConfigError

_MODULES = {
    "train": ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib"),
    "server": (
        "cachetools",
        "defusedxml",
        "fastapi",
        "httpx",
        "jsonschema",
        "math_verify",
        "numpy",
        "pebble",
        "prometheus_client",
        "py3langid",
        "re2",
        "sqlalchemy",
        "tenacity",
        "uvicorn",
    ),
    "unsloth": ("unsloth",),
}


def require_extra(extra: str, wanted_by: str) -> None:
    """Raise ConfigError, naming the extra to install, unless all its modules can be found."""
    missing = [module for module in _MODULES[extra] if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"{wanted_by} needs {', '.join(missing)}: pip install 'posttrain-toolkit[{extra}]' "
            "(the README has the pinned command)"
        )
