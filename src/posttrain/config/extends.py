"""Read a config file together with the files that its `extends` names, and keep where each value stands."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.text import as_shown
from posttrain.config.keys import EXTENDS, KeyPath, Place, shown
from posttrain.config.strict import TextFrom, without_dots
from posttrain.config.yaml_source import read_yaml
from posttrain.errors import ConfigError

MOST_FILES = 20


@dataclass(frozen=True)
class ConfigSource:
    """The plain data of a config file over that of the files it extends; `places` has the root `()` too."""

    data: dict[str, Any]
    places: dict[KeyPath, Place]


def read_config(path: Path) -> ConfigSource:
    """Read a config file over the files that it extends.

    Later files win over earlier ones, and the file itself over all: mappings are merged key by key, everything else,
    null included, is replaced. Text of an extended file is `TextFrom` its folder, so that paths start from there.

    Raises:
        ConfigError: a file cannot be read, or extends itself; or there are more than `MOST_FILES`.
    """
    return _Reading().source(path, ())


def extended_files(path: Path) -> list[Path]:
    """The files that a config file extends, directly or not; none if it is no config."""
    reading = _Reading()
    try:
        reading.source(path, ())
    except ConfigError:
        return []
    return [each for each in reading.found if each != path.absolute()]


def merged(base: Any, own: Any) -> Any:
    """`own` over `base`, as new data: mappings are merged key by key, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return base | {key: merged(base[key], value) if key in base else value for key, value in own.items()}


class _Reading:
    """What was read for one config. Each file is read once, though several may extend it."""

    def __init__(self) -> None:
        self.found: dict[Path, ConfigSource] = {}
        self._begun = 0

    def source(self, path: Path, above: tuple[Path, ...]) -> ConfigSource:
        """The file over what it extends; `above` are the files that led here, the outermost first."""
        yaml = read_yaml(path)
        self._begun += 1
        order, name = self._begun, as_shown(path)
        places = {key: Place((order, line), f"{name}:{line}") for key, line in yaml.lines.items()}
        data = yaml.data if not above else marked(yaml.data, path.absolute().parent)
        below = ConfigSource({}, {})
        for label, base in _bases(path, data, places):
            try:
                self._check(label, base, (*above, path))
            except OSError as error:  # such as a name that is too long
                raise ConfigError(f"{label}: {EXTENDS}: {as_shown(base)}: {error.strerror}") from None
            below = _over(below, self.found.get(base.absolute()) or self.source(base, (*above, path)))
        data = {key: value for key, value in data.items() if key != EXTENDS}
        self.found[path.absolute()] = whole = _over(below, ConfigSource(data, places))
        return whole

    def _check(self, label: str, base: Path, above: tuple[Path, ...]) -> None:
        """Raise ConfigError, at the line that names it, if a base is missing, is one of `above`, or one too many."""
        problem = None
        if base.is_dir():
            problem = f"{as_shown(base)} is a folder; give the YAML file in it"
        elif not base.exists():
            problem = f"there is no file {as_shown(base)}; a path starts from the folder of the file that names it"
        elif (real := base.resolve()) in (files := [each.resolve() for each in above]):
            circle = " → ".join(as_shown(each) for each in (*above[files.index(real) :], base))
            problem = f"the file would extend itself: {circle}"
        elif self._begun == MOST_FILES and base.absolute() not in self.found:
            problem = f"{as_shown(base)} is one file too many; at most {MOST_FILES} belong to a config"
        if problem:
            raise ConfigError(f"{label}: {EXTENDS}: {problem}")


def _bases(path: Path, data: dict[str, Any], places: dict[KeyPath, Place]) -> Iterator[tuple[str, Path]]:
    """The files that a file extends, each with the place that names it."""
    if EXTENDS not in data:
        return
    value = data[EXTENDS]
    names = value if isinstance(value, list) else [value]
    for number, name in enumerate(names):
        label = places[(EXTENDS, number) if isinstance(value, list) else (EXTENDS,)].label
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise ConfigError(f"{label}: {EXTENDS}: should be a file or a list of files, found {shown(name)}")
        try:
            yield label, without_dots(path.parent / Path(name).expanduser())
        except RuntimeError:
            raise ConfigError(f"{label}: {EXTENDS}: the user after `~` has no home folder") from None


def marked(value: Any, folder: Path) -> Any:
    """Plain data with all its text as `TextFrom` a folder."""
    if isinstance(value, dict):
        return {key: marked(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [marked(item, folder) for item in value]
    return TextFrom(value, folder) if isinstance(value, str) else value


def _over(base: ConfigSource, own: ConfigSource) -> ConfigSource:
    """`own` over `base`; a merged section stands where `own` has it."""
    replaced = set(_replaced(base.data, own.data, ()))
    kept = {
        path: place
        for path, place in base.places.items()
        if path and not any(path[:end] in replaced for end in range(1, len(path) + 1))
    }
    return ConfigSource(merged(base.data, own.data), {**kept, **own.places})


def _replaced(base: Any, own: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of what `own` replaces in `base`."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        yield path
        return
    for key in base.keys() & own.keys():
        yield from _replaced(base[key], own[key], (*path, key))
