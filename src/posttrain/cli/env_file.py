"""Read environment variables from a `.env` file."""

import io
import os
from pathlib import Path

from posttrain.base.files import require_file
from posttrain.base.secrets import hide_variable
from posttrain.base.text import as_shown, first_of
from posttrain.errors import ConfigError, DataError

_MOST_BYTES = 1024 * 1024


def read_env_file(path: Path) -> None:
    """Set the variables of a `.env` file that are not set yet; what the file holds is never shown.

    Values are taken as they stand: `${NAME}` is not filled in.

    Raises:
        ConfigError: the file cannot be read, or a line is not NAME=value; then nothing is set.
    """
    from dotenv.parser import parse_stream

    name = as_shown(path)
    try:
        require_file(path)
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_MOST_BYTES + 1)
    except DataError as error:
        raise ConfigError(f"--env-file: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--env-file: {name}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"--env-file: {name}: cannot be read: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"--env-file: {name}: larger than {_MOST_BYTES // 1024} KiB; is this a .env file?")
    found: dict[str, str] = {}
    wrong: list[str] = []
    for binding in parse_stream(io.StringIO(text)):
        is_name = bool(binding.key) and "=" not in str(binding.key)
        if binding.key and is_name and binding.value is not None and "\0" not in binding.key + binding.value:
            found[binding.key] = binding.value
        elif binding.error or binding.key is not None:
            text = binding.original.string  # begins with the empty lines before it
            wrong.append(str(binding.original.line + len(text) - len(text.lstrip("\n"))))
    if wrong:
        lines = f"line{'s' * (len(wrong) > 1)} {first_of(wrong)}"
        raise ConfigError(f"--env-file: {name}: {lines}: should be NAME=value, with quotes around odd values")
    for variable, value in found.items():
        os.environ.setdefault(variable, value)
        hide_variable(variable)
