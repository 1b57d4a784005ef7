"""Requests that are refused, by table, and the field that each message names."""

from typing import Any

import httpx
import pytest
from serve_cases import NAME, Server, good, refused

USER = [{"role": "user", "content": "one"}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": None}, "model: Field required"),
        ({"model": 3}, "model: Input should be a valid string"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": []}, "messages is an empty list"),
        ({"messages": "one"}, "messages: Input should be a valid list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0]: role must be one of"),
        ({"messages": [{"role": "user"}]}, "messages[0]: content is missing"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]: content must be a string"),
        (
            {"messages": [*USER, {"role": "system", "content": "x"}]},
            "messages[1]: a system message can only come first",
        ),
        ({"messages": [*USER, {"role": "assistant", "content": "x"}]}, "the last message is the assistant's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text parts"),
        ({"n": 17}, "n: 17 is more than the 16 answers"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"n": 2}, "n: 2 with temperature: 0 gives the same answer"),
        ({"n": 1.5}, "n: "),
        ({"temperature": -1}, "temperature: "),
        ({"temperature": "hot"}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"max_tokens": 2_000_000}, "max_tokens: 2000000 that exceeds the model's 1000000 positions"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens and max_completion_tokens differ"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "at most 16 strings"),
        ({"seed": 2**63}, "seed: "),
        ({"stream": True, "logprobs": True}, "logprobs: not with stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options: only with stream"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty: is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias: is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format: is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: is not supported"),
        ({"top_logprobs": 3}, "top_logprobs: is not supported"),
        ({"nonsense": 1}, "nonsense: is not supported"),
        ({"messages": [{"role": "user", "content": "one " * 3000}]}, "more than chat.max_length: 2048"),
    ],
)
def test_a_wrong_chat_request_is_refused_by_name(server: Server, fields: dict[str, Any], reason: str):
    body = {key: value for key, value in {"model": NAME, "messages": USER, **fields}.items() if value is not None}
    error = refused(server.client.post("/v1/chat/completions", json=body), 400)
    assert reason in error["message"]
    assert error["type"] == "invalid_request_error"
    named = reason.partition(":")[0]
    if ":" in reason and named.isidentifier() and error["message"].startswith(named):
        assert error["param"] == named


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": None}, "prompt: Field required"),
        ({"prompt": ""}, "prompt: a prompt has at least one token"),
        ({"prompt": []}, "prompt: it is empty"),
        ({"prompt": [[]]}, "prompt: a prompt has at least one token"),
        ({"prompt": [5, "x"]}, "prompt: Value error, should be a text"),
        ({"prompt": [-1]}, "prompt: Value error, should be a text"),
        ({"prompt": [True]}, "prompt: Value error, should be a text"),
        ({"prompt": [5, 380]}, "prompt: there is no token 380; the vocabulary has 380"),
        ({"prompt": [10**30]}, "prompt: "),
        ({"prompt": ["x"] * 17}, "n: 1 for each of 17 prompts is more than the 16 answers"),
        ({"logprobs": 2}, "logprobs: "),
        ({"prompt_logprobs": 1}, "prompt_logprobs: "),
        ({"echo": True}, "echo: is not supported"),
        ({"best_of": 2}, "best_of: is not supported"),
        ({"suffix": "x"}, "suffix: is not supported"),
        ({"messages": USER}, "messages: is not supported"),
        ({"stream": True, "prompt_logprobs": 0}, "logprobs: not with stream"),
    ],
)
def test_a_wrong_completion_request_is_refused_by_name(server: Server, fields: dict[str, Any], reason: str):
    body = {key: value for key, value in {"model": NAME, "prompt": "one", **fields}.items() if value is not None}
    assert reason in refused(server.client.post("/v1/completions", json=body), 400)["message"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model": "run:base", "messages": [{"role": "user", "content": "\xff\xfe"}]}', "not JSON in UTF-8"),
        (b"{", "not JSON in UTF-8"),
        (b"", "body"),
        (b"[1]", "body"),
        (b'{"model": "a", "model": "b"}', "duplicate key"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"model": "run:base", "messages": [], "temperature": NaN}', "temperature: "),
        (b'{"model": "run:base", "messages": [], "temperature": 1e999}', "temperature: "),
    ],
)
def test_what_is_no_request_at_all_is_refused(server: Server, content: bytes, reason: str):
    headers = {"Content-Type": "application/json"}
    response = server.client.post("/v1/chat/completions", content=content, headers=headers)
    assert reason in refused(response, 400)["message"]


def test_a_page_of_another_site_cannot_send_a_form(server: Server):
    response = server.client.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert "send the body as JSON" in refused(response, 400)["message"]


def test_half_a_surrogate_pair_is_replaced(server: Server):
    content = b'{"model": "run:base", "seed": 1, "messages": [{"role": "user", "content": "a\\ud800"}]}'
    headers = {"Content-Type": "application/json"}
    given = good(server.client.post("/v1/chat/completions", content=content, headers=headers))
    assert given["choices"] == good(server.chat("a\ufffd", seed=1))["choices"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_other_paths_and_methods_are_refused(server: Server, method: str, path: str, status: int):
    refused(httpx.request(method, server.url + path, trust_env=False), status)
