"""Files inside the data root, and no others."""

import os
from pathlib import Path

from posttrain.base.files import require_file
from posttrain.errors import DataError


def require_root(root: Path) -> None:
    """Raise DataError unless the data root is a folder."""
    if not root.is_dir():
        raise DataError(f"data_root {root} is no folder; set data_root to where the data are")


def confined_file(root: Path, relative: str) -> Path:
    """The file at `relative` under the data root.

    Raises:
        DataError: there is no such file, or it lies outside the root, be it by a symbolic link.
    """
    path = root / relative
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if os.path.commonpath([real, real_root]) != real_root:
        raise DataError(f"{path} leads to {real}, outside of data_root {real_root}; data are only read inside of it")
    require_file(path)
    return path
