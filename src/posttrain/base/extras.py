"""Name the extra to install if an optional package is missing, in one line instead of an ImportError."""

from importlib.util import find_spec

from posttrain.base.text import first_of
from posttrain.errors import ConfigError

# An extra that is not listed has one module, named like the extra.
_MODULES = {
    "lm-eval": ("lm_eval",),
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
}


def require_extra(extra: str, wanted_by: str) -> None:
    """Raise ConfigError, naming the extra to install, unless all its modules can be found."""
    missing = [module for module in _MODULES.get(extra, (extra,)) if find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"{wanted_by} needs {first_of(missing, 4)}: pip install 'posttrain-toolkit[{extra}]' "
            "(the README has the pinned command)"
        )
