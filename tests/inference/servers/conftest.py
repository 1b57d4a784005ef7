"""Contract servers and the weights that they load."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inference.servers.contract_server import ContractServer, contract_server
from inference.servers.table_model import write_table


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The weights that the servers start with."""
    return write_table(tmp_path / "model", seed=0)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Other weights, to be loaded."""
    return write_table(tmp_path / "weights", seed=1)


@pytest.fixture
def serve(model: Path) -> Iterator[Callable[..., ContractServer]]:
    """`serve(kind, **options)` runs a contract server until the test ends."""
    with ExitStack() as stack:

        def serve_(kind: str, **options: Any) -> ContractServer:
            return stack.enter_context(contract_server(kind, model, **options))

        yield serve_
