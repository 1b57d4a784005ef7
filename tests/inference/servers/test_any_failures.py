"""Whatever servers do while one lasts, each completion comes once and is the model's."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.servers.contract_server import contract_server
from inference.servers.server_engines import HOT, KINDS, expected, opened, requests

faults = st.fixed_dictionaries({}, optional={"dies_after": st.integers(0, 12), "busy": st.integers(0, 6)})


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=faults, second=faults, size=st.integers(1, 6))
def test_completions_are_complete_and_right(
    kind: str, model: Path, tmp_path: Path, first: dict[str, int], second: dict[str, int], size: int
) -> None:
    asked = requests(4, size)
    with ExitStack() as stack:
        servers = [stack.enter_context(contract_server(kind, model)) for _ in range(3)]
        engine = stack.enter_context(opened(servers, model, tmp_path))
        for server, wrong in zip(servers, (first, second), strict=False):
            server.faults |= wrong
        found = engine.complete(asked, HOT)
    wanted = expected(model, asked, HOT)
    assert list(found) == list(wanted)
    assert all(found[key].token_ids == wanted[key].token_ids for key in wanted)
