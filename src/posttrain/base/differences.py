"""List the differences between two nested mappings, such as two configs or manifests."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """All single values in nested mappings and lists, by keys such as `stages[0].mix.a`; null is the same as absent."""
    if isinstance(value, Mapping):
        parts = [flatten(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        parts = [flatten(item, f"{key}[{index}]") for index, item in enumerate(value)]
    else:
        return {} if value is None else {key: value}
    return {name: item for part in parts for name, item in part.items()}


def changed_values(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Key, old and new value of each single value that differs, in the order of the keys; None where there is none."""
    before, after = flatten(old), flatten(new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)


def differences(old: Any, new: Any) -> list[str]:
    """One line `section.key: old → new` for each value that differs."""
    return [f"{key}: {_told(before)} → {_told(after)}" for key, before, after in changed_values(old, new)]


def _told(value: Any) -> Any:
    return "absent" if value is None else value
