"""A folder with a config, and a PostgreSQL server that is started once."""

from pathlib import Path

import pytest
from offline_cases import load, write_config

from posttrain.dataserver.runtime import Loaded


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The config file, its data beside it."""
    return write_config(tmp_path)


@pytest.fixture
def loaded(config: Path) -> Loaded:
    """What it names."""
    return load(config)
