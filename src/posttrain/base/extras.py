"""One line instead of an ImportError where an optional part of the installation is missing."""

from importlib.util import find_spec

from posttrain.errors import ConfigError

_MODULES = {
    "train": ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "matplotlib"),
    "server": (
        "fastapi",
        "uvicorn",
        "httpx",
        "pebble",
        "sqlalchemy",
        "re2",
        "math_verify",
        "jsonschema",
        "defusedxml",
        "cachetools",
        "tenacity",
        "prometheus_client",
        "py3langid",
        "numpy",
    ),
    "unsloth": ("unsloth",),
    "vllm": ("vllm",),
}

_SHOWN = 4


def require_extra(extra: str, wanted_by: str) -> None:
    """Raise ConfigError, naming the extra to install, unless all its modules can be found."""
    missing = [module for module in _MODULES[extra] if find_spec(module) is None]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ConfigError(
            f"{wanted_by} needs {', '.join(missing[:_SHOWN])}{more}: pip install 'posttrain-toolkit[{extra}]' "
            "(the README has the pinned command)"
        )
