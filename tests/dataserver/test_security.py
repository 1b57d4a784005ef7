"""Who is allowed in, and what is never disclosed."""

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from dataserver.serving import Server, a_config, serving
from posttrain.config.load import load_config
from posttrain.config.sections.listen import ListenConfig
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.errors import ConfigError
from running import BIN

TOKEN = "canary-8d1f-token-päss"
ASKED_BY_ALL = ["/healthz", "/readyz"]
PROTECTED = ["/meta", "/metrics", "/openapi.json", "/sample", "/grade", "/nothing"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Listens on all interfaces, with a token and a JSON log."""
    listen = {"host": "0.0.0.0", "token_env": "DATASERVER_TOKEN", "log": "json"}
    config = a_config(tmp_path_factory.mktemp("security") / "config", listen=listen)
    with serving(config, token=TOKEN, environment={"DATASERVER_TOKEN": TOKEN}) as server:
        yield server


@pytest.fixture(scope="module")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Listens on loopback only, on its own address."""
    config = a_config(tmp_path_factory.mktemp("local") / "config", listen={"host": "127.0.0.3"})
    with serving(config) as server:
        yield server


def ask(server: Server, path: str, authorization: str | bytes | None) -> httpx.Response:
    given = authorization.encode() if isinstance(authorization, str) else authorization
    headers = [] if given is None else [(b"Authorization", given)]
    method = "POST" if path in ("/sample", "/grade") else "GET"
    return httpx.request(method, server.url + path, headers=headers, trust_env=False)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer:",
        f"Bearer {TOKEN[:-1]}".encode(),
        f"Bearer {TOKEN}x".encode(),
        f"Bearer {TOKEN.upper()}".encode(),
        f"Token {TOKEN}".encode(),
        TOKEN.encode(),
        basic("", "wrong"),
        basic(TOKEN, ""),
        "Basic %%%",
        "Basic é".encode(),
        "Basic " + base64.b64encode(b"no colon").decode(),
        b"Bearer \xff\xfe",
    ],
    ids=range(15),
)
def test_without_the_token_nothing_is_told(server: Server, authorization: str | bytes | None) -> None:
    for path in PROTECTED:
        response = ask(server, path, authorization)

        assert response.status_code == 401
        assert response.json()["code"] == "unauthorized"
        assert response.headers["WWW-Authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic("anybody", TOKEN), basic("", TOKEN)]
)
def test_the_token_opens_everything(server: Server, authorization: str) -> None:
    told = {path: ask(server, path, authorization.encode()).status_code for path in PROTECTED}

    assert told == {"/meta": 200, "/metrics": 200, "/openapi.json": 200, "/sample": 422, "/grade": 422, "/nothing": 404}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Host", ["localhost", "evil.example"]),
        ("Host", ["evil.example", "localhost"]),
        ("Authorization", [f"Bearer {TOKEN}", "Bearer wrong"]),
        ("Authorization", ["Bearer wrong", f"Bearer {TOKEN}"]),
        ("Content-Type", ["text/plain", "application/json"]),
        ("Content-Encoding", ["gzip", "identity"]),
    ],
)
def test_a_header_that_somebody_else_may_read_otherwise_is_refused(
    server: Server, local_server: Server, name: str, values: list[str]
) -> None:
    for each in (server, local_server):
        lines = [f"{name}: {value}" for value in values]
        lines += [] if name == "Host" else ["Host: localhost"]
        lines += [] if name == "Authorization" else [f"Authorization: Bearer {TOKEN}"]
        with socket.create_connection(("127.0.0.3", each.port), timeout=30) as connection:
            connection.sendall("\r\n".join(["GET /meta HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()

        assert answer.startswith("HTTP/1.1 422")
        assert f"{name.lower()} twice" in json.loads(answer.partition("\r\n\r\n")[2])["message"]


def test_no_answer_is_taken_for_another_kind_of_content(server: Server) -> None:
    for path in (*ASKED_BY_ALL, *PROTECTED, "/ui"):
        assert ask(server, path, f"Bearer {TOKEN}".encode()).headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_runs_its_own_script_and_no_other(server: Server) -> None:
    page = server.client.get("/ui")
    (script,) = re.findall("<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    (allowed,) = [each for each in page.headers["Content-Security-Policy"].split("; ") if each.startswith("script-src")]
    assert allowed == f"script-src 'sha256-{digest}'"
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]


def test_a_load_balancer_needs_no_token_and_learns_little(server: Server) -> None:
    answers = [ask(server, path, None) for path in ASKED_BY_ALL]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == {"status": "ok"}
    # Paths that only look like the open ones are protected.
    for path in ("/healthz/", "/readyz/../meta", "//healthz", "/healthz%2f..%2fmeta", "/HEALTHZ"):
        assert ask(server, path, None).status_code in (401, 404)


def test_the_token_is_written_nowhere(server: Server) -> None:
    sample = server.sample(0, 1).samples[0]
    item = {"item_id": "a", "sample_id": sample.sample_id, "completion": "raise an error"}
    server.grade([item], "canary")
    answers = [ask(server, path, f"Bearer {TOKEN}".encode()) for path in PROTECTED]
    answers += [ask(server, path, f"Bearer {TOKEN}x".encode()) for path in PROTECTED]
    answers += [server.client.get("/meta", headers={"X-Request-ID": "a"}), server.client.post("/grade", content=b"{")]
    commands = str([process.info for process in psutil.process_iter(["cmdline"])])
    files = [path.read_bytes() for path in server.log.parent.rglob("*") if path.is_file()]

    for canary in (TOKEN.encode(), b"canary-8d1f", base64.b64encode(f":{TOKEN}".encode())):
        assert not [answer for answer in answers if canary in answer.content + str(answer.headers).encode()]
        assert canary.decode() not in commands
        assert not [content for content in files if canary in content]


def test_every_line_of_a_log_for_machines_is_json_and_names_its_request(server: Server) -> None:
    asked = ["first-request", "second-request"]
    server.client.get("/meta", headers={"X-Request-ID": asked[0]})
    ask(server, "/no such path?secret=7", None)
    server.client.post("/grade", content=b"{", headers={"X-Request-ID": asked[1]})

    # An answer may arrive before its log line is written.
    end = time.monotonic() + 10
    while "second-request" not in server.log.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]

    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    by_id = {line.get("request_id"): line for line in lines}
    assert by_id[asked[0]]["message"].startswith("GET /meta 200 ")
    assert (by_id[asked[1]]["status"], by_id[asked[1]]["message"][:15]) == (422, "POST /grade 422")
    assert by_id[asked[0]]["ms"] > 0
    assert not [line for line in lines if "secret" in str(line)]


def test_no_web_page_of_another_origin_is_let_in(local_server: Server) -> None:
    origin = {"Origin": "http://evil.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}

    answers = [
        local_server.client.get("/meta", headers=origin),
        local_server.client.options("/grade", headers=preflight),
        # A request that a page may send without a preflight.
        local_server.client.post(
            "/sample", content=b'{"iteration":0,"batch_size":1}', headers={**origin, "Content-Type": "text/plain"}
        ),
    ]

    assert [answer.status_code for answer in answers] == [200, 405, 422]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
        "[::1",
        "a b",
    ],
)
def test_a_server_for_this_machine_answers_to_no_other_name(local_server: Server, host: str) -> None:
    for path in ("/meta", "/healthz"):
        assert local_server.client.get(path, headers={"Host": host}).status_code == 400


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1234", "LOCALHOST", "127.0.0.1", "127.0.0.1:9000", "[::1]:9000", "127.0.0.3"]
)
def test_a_server_for_this_machine_answers_to_the_names_of_this_machine(local_server: Server, host: str) -> None:
    assert local_server.client.get("/meta", headers={"Host": host}).status_code == 200


def test_unless_told_otherwise_only_this_machine_is_listened_to(local_server: Server) -> None:
    connections = psutil.Process(local_server.process.pid).net_connections("inet")

    assert ListenConfig().host == "127.0.0.1"
    assert {connection.laddr.ip for connection in connections if connection.status == "LISTEN"} == {"127.0.0.3"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_other_machines_are_listened_to_with_a_token_only(tmp_path: Path, host: str) -> None:
    config = a_config(tmp_path / "config", listen={"host": host})

    with pytest.raises(ConfigError, match=f"on host {host} other machines can reach this server.*token_env"):
        load_config(config, DataserverConfig, [])


def test_a_token_that_anybody_could_guess_is_refused(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config", listen={"host": "0.0.0.0", "token_env": "DATASERVER_TOKEN"})

    def start(token: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DATASERVER_TOKEN": token}
        command = [BIN / "toolkit-rl-dataserver", config]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    with ThreadPoolExecutor() as threads:
        missing, short = threads.map(start, ["", "easy-to-guess"])

    assert missing.returncode == short.returncode == 2
    for ended, state in ((missing, "not set"), (short, "shorter than 16 characters")):
        (line,) = ended.stderr.splitlines()
        assert f"the environment variable DATASERVER_TOKEN is {state}" in line
        assert "easy-to-guess" not in line
