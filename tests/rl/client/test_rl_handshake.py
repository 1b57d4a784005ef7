"""The handshake before a run: the server is up, ready, speaks the same protocol and has the run's config."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataserver.serving import Server, a_config, good, serving, until
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.connection import handshake
from posttrain.rl.client.transport import OutageError
from rl.rl_serving import Fault, changed, failing, spoiling


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("handshake") / "config")) as server:
        yield server


def a_client(url: str, **options: Any) -> DataserverClient:
    return DataserverClient(url, **{"run_id": "a run", **options})


def test_a_server_that_is_not_there_yet_is_waited_for_until_it_is_ready(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    gate = config.with_name("wait")
    gate.touch()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with a_client(url) as client, a_client(url) as impatient, ThreadPoolExecutor() as threads:
        greeting = threads.submit(handshake, client, wait_seconds=60)
        until(lambda: client.retries > 1)
        with serving(config, port=port, wait=False) as server:
            with pytest.raises(OutageError, match="answered /readyz with 503: the gold answers are being checked"):
                handshake(impatient, wait_seconds=0.3)
            # A wrong config_id is reported before the server is ready.
            with pytest.raises(ServerError, match="but the run has another"), a_client(url) as resumed:
                handshake(resumed, config_id="another")
            assert not greeting.done()

            gate.unlink()

            assert greeting.result(60) == Meta.model_validate(good(server.client.get("/meta")))


def test_a_run_that_goes_on_holds_the_server_to_its_config(server: Server) -> None:
    with a_client(server.url) as client:
        config_id = handshake(client).config_id
    with a_client(server.url) as client:
        assert handshake(client, config_id=config_id).config_id == config_id
    with a_client(server.url) as client:
        with pytest.raises(ServerError, match=f"its config_id is {config_id}, but the run has 0123"):
            handshake(client, config_id="0123")
        assert client.retries == 0


def test_a_newer_server_of_the_same_protocol_is_understood(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = changed(lambda meta: meta.update(protocol_version="1.9", something_new={"a": 1}))

        assert handshake(client).protocol_version == "1.9"
        assert len(client.sample(0, 0, 8)) == 8


WRONG: dict[str, tuple[Fault, type[Exception], str]] = {
    "the next protocol": (
        changed(lambda meta: meta.update(protocol_version="2.0", limits="none")),
        ServerError,
        "speaks protocol 2.0, this trainer 1.1; install the same version of posttrain-toolkit on both sides",
    ),
    "another service": (
        changed(lambda meta: {"status": "ok"}),
        ConfigError,
        "does not identify itself as one; is this the address of a toolkit-rl-dataserver?",
    ),
    "a list": (changed(lambda meta: [meta]), ConfigError, "does not identify itself as one"),
    "nothing of that name": (failing(404), ConfigError, "with 404: Not Found; is this the address of a toolkit-rl"),
    "a login page": (
        failing(302, Location="https://login.example/a"),
        ConfigError,
        "answered /meta with 302: Found, and points to https://login.example/a; is this the address",
    ),
    "forbidden": (failing(403), ServerError, "answered /meta with 403: Forbidden"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_server_is_told_at_once(server: Server, name: str) -> None:
    fault, error, message = WRONG[name]
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = fault

        with pytest.raises(error, match=re.escape(message)) as told:
            handshake(client)

        assert not isinstance(told.value, OutageError)
        assert client.retries == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda reply: reply._replace(content=b"<html>"), "answered /meta with something that is not JSON"),
        (lambda reply: reply._replace(content=reply.content[:-9]), "answered /meta with something that is not JSON"),
        (changed(lambda meta: meta.pop("limits") and None), "answered /meta with an invalid body: limits: Field"),
        (failing(502), "answered /meta with 502: Bad Gateway"),
    ],
    ids=["HTML", "cut", "incomplete", "502"],
)
def test_a_broken_description_is_asked_for_again(server: Server, fault: Fault, message: str) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = fault
        with pytest.raises(OutageError, match=message):
            handshake(client, wait_seconds=0)

        with ThreadPoolExecutor() as threads:
            greeting = threads.submit(handshake, client)
            until(lambda: client.retries > 0)
            proxy.describing = None

            assert greeting.result(30).prompts_per_iteration == 8
