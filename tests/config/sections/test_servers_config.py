"""Section `servers`: where generation servers are, and what a network must offer."""

from typing import Any

import pytest
from pydantic import ValidationError

from posttrain.config.sections.servers import ServersConfig, is_loopback

FAR = "http://10.0.0.5:8000"


def checked(**section: Any) -> ServersConfig:
    return ServersConfig.model_validate(section)


def test_a_server_on_this_machine_needs_nothing_more() -> None:
    assert checked(urls=["http://127.0.0.1:8000/"]).urls == ("http://127.0.0.1:8000",)


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.9.9", True),
        ("http://localhost:1", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.5:8000", False),
        ("http://localhost.example.org", False),
        ("http://0.0.0.0:8000", False),
    ],
)
def test_only_this_machine_is_loopback(url: str, near: bool) -> None:
    assert is_loopback(url) is near


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({}, "urls"),
        ({"urls": [FAR], "start": {"command": ["vllm"]}}, "not both"),
        ({"urls": [FAR], "folder": "/w"}, "token_env"),
        ({"urls": [FAR], "folder": "/w", "token_env": "KEY"}, "insecure_network"),
        ({"urls": [FAR], "token_env": "KEY", "insecure_network": True}, "folder"),
        ({"urls": ["http://127.0.0.1:1", "http://127.0.0.1:1/"]}, "twice"),
        ({"urls": ["http://127.0.0.1:1"], "min_servers": 2}, "min_servers"),
        ({"urls": ["ftp://127.0.0.1"]}, "address"),
        ({"urls": ["http://user:secret@127.0.0.1"]}, "token_env"),
        ({"urls": ["http://127.0.0.1:99999"]}, "address"),
        ({"urls": ["http://127.0.0.1"], "folder_on_server": "/w"}, "folder"),
        ({"urls": ["http://127.0.0.1"], "folder": "/w", "folder_on_server": "w"}, "slash"),
        ({"start": {"command": []}}, "command"),
        ({"start": {"command": ["vllm"]}, "token_env": "KEY"}, "token_env"),
        ({"start": {"command": ["vllm"], "count": 2, "devices": ["0"]}}, "devices"),
        ({"start": {"command": ["vllm"], "count": 2, "port": 65535}}, "port"),
    ],
)
def test_a_section_that_cannot_work_is_refused(section: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        checked(**section)


@pytest.mark.parametrize(
    "section",
    [
        {"urls": [FAR], "folder": "/w", "token_env": "KEY", "insecure_network": True},
        {"urls": ["https://far.example.org"], "folder": "/w", "token_env": "KEY"},
        {"urls": ["https://far.example.org"], "weights": "off", "token_env": "KEY"},
        {"start": {"command": ["vllm", "serve"], "count": 2, "devices": ["1", "2,3"]}, "min_servers": 2},
    ],
)
def test_a_section_that_can_work_is_accepted(section: dict[str, Any]) -> None:
    assert checked(**section)
