"""Import and call a user's Python code, and report its errors in one message."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain.base.files import require_file
from posttrain.errors import ConfigError, RunError, ToolkitError

_FORMER_PACKAGE = "toolkit"


def split_place(place: str) -> tuple[str, str]:
    """Split `file.py:Name` at the colon; ValueError if it has another form."""
    where, colon, name = place.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise ValueError(f"{place!r} must end with a colon and the name of a function or class, as in grader.py:score")
    return where, name


def find_module_file(place: str) -> Path:
    """The source file of `package.module:Name`; ConfigError if there is none."""
    name = split_place(place)[0]
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"there is no module {name!r}: {error}") from None
    if found is None:
        raise ConfigError(f"there is no module {name!r}")
    if not found.has_location or found.origin is None:
        raise ConfigError(f"module {name!r} has no source file")
    return Path(found.origin)


def import_module(name: str) -> ModuleType:
    find_module_file(f"{name}:module")
    return _imported(name, lambda: importlib.import_module(name))


def import_file(path: Path) -> ModuleType:
    """Import the file under a unique module name. In its imports, installed packages win over files beside it."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"user_code_{blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file; its name must end with .py")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses and pickle look up a class's module here
    try:
        _imported(str(path), lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


class UserCallable:
    """A function in a user's file.

    Attributes:
        place: `file.py:function`.
    """

    def __init__(self, place: str) -> None:
        """Import it.

        Raises:
            ConfigError: the file does not exist, cannot be imported, or has no such function.
        """
        self.place = place
        file, name = split_place(place)
        self._file = Path(file)
        found = getattr(import_file(self._file), name, None)
        if not callable(found):
            raise ConfigError(f"{file} has no function {name!r}")
        self._function: Callable[..., Any] = found

    def __call__(self, *inputs: Any) -> Any:
        """Call the function; RunError, with its file and line, if it raises an error."""
        try:
            return self._function(*inputs)
        except Exception as error:
            raise RunError(f"{self.where(error)}: {type(error).__name__}: {error}") from error

    def where(self, error: BaseException | None = None) -> str:
        """The file, and its line that raised the error or begins the function."""
        frames = traceback.extract_tb(error.__traceback__) if error is not None else []
        lines = [frame.lineno for frame in frames if Path(frame.filename) == self._file]
        code = getattr(self._function, "__code__", None)
        line = lines[-1] if lines else getattr(code, "co_firstlineno", None)
        return f"{self._file}:{line}" if line else str(self._file)


def function_digest(key: str, place: str) -> str:
    """Hash of the file of `file.py:function`; ConfigError, naming the config's key, if it cannot be read."""
    file = Path(split_place(place)[0])
    try:
        require_file(file)
    except ToolkitError as error:
        raise ConfigError(f"{key}: {error}") from None
    return blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _imported(what: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == _FORMER_PACKAGE:
            told = (
                f"it imports {error.name}, but that package is now called posttrain; change the import "
                "(see CHANGELOG.md)"
            )
            raise ConfigError(f"{what} cannot be imported: {told}") from error
        raise ConfigError(f"{what} cannot be imported: {error_in_words(error)}") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(f"{what} cannot be imported: {error_in_words(error)}") from error


def error_in_words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
