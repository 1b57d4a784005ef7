"""A config with its data, as a file and loaded."""

from pathlib import Path

import pytest
from offline_cases import load, write_config

from posttrain.dataserver.runtime import Loaded


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config file with its data beside it."""
    return write_config(tmp_path)


@pytest.fixture
def loaded(config: Path) -> Loaded:
    """The loaded config and its data."""
    return load(config)
