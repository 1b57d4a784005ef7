"""Ask llama.cpp's server, which is started for one GGUF file, over a Unix socket that only this user can open."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from posttrain.errors import RunError
from posttrain.export.llama_cpp import LlamaCpp
from posttrain.export.processes import end_of, start, stop

TOP = 100
"""Tokens whose log-probabilities are given for each token of an answer."""

_START_SECONDS = 600.0
_ANSWER_SECONDS = 3600.0


@dataclass(frozen=True)
class Answer:
    """A greedy answer: ids, with the end token if it ended, and for each token the log-probabilities of the likeliest.

    Attributes:
        top: for each token of `ids`, up to `TOP` ids with their log-probabilities in nats, the likeliest first.
        has_ended: whether a token ended it, and not its length.
    """

    ids: list[int]
    top: list[dict[int, float]]
    has_ended: bool


class LlamaServer:
    """llama.cpp with one file loaded; every method raises RunError if it does not answer."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def version(self) -> str:
        """What llama.cpp says of its build."""
        return str(self._asked("GET", "/props").get("build_info", "unknown"))

    def tokenize(self, text: str, *, control: bool, add: bool = False) -> list[int]:
        """Ids of a text; `control` reads control tokens in it as such, `add` adds what the file says is to be added."""
        body = {"content": text, "parse_special": control, "add_special": add}
        return self._asked("POST", "/tokenize", body)["tokens"]

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> str:
        """The text of a prompt by the file's chat template."""
        body = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
        return self._asked("POST", "/apply-template", body)["prompt"]

    def answer(self, prompt: Sequence[int], most: int, *, forced: int | None = None) -> Answer:
        """A greedy answer of up to `most` tokens; `forced` is an id that is chosen at every step."""
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n_predict": most,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "n_probs": TOP,
            "return_tokens": True,
            "cache_prompt": False,
        }
        if forced is not None:
            body["logit_bias"] = [[forced, 1e4]]
        told = self._asked("POST", "/completion", body)
        tops = [{each["id"]: each["logprob"] for each in token["top_logprobs"]} for token in _probabilities(told)]
        # Tokens at the end that make no whole character yet have no probabilities.
        ids = told["tokens"][: len(tops)]
        return Answer(ids, tops, told["stop_type"] == "eos")

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise RunError(f"llama.cpp's server gave no answer to {path}: {error}") from error
        if response.status_code != 200:
            raise RunError(f"llama.cpp's server refused {path}: {response.text[:500]}")
        return response.json()


def _probabilities(told: dict[str, Any]) -> list[dict[str, Any]]:
    return told.get("completion_probabilities", [])


@contextmanager
def llama_server(tools: LlamaCpp, file: Path, context: int) -> Iterator[LlamaServer]:
    """Serve `file` during the block, with room for `context` tokens.

    Raises:
        RunError: llama.cpp cannot load the file; the message has the end of its output.
    """
    with TemporaryDirectory(prefix="posttrain-") as name:  # for this user alone
        socket, log = Path(name) / "llama.sock", Path(name) / "server.log"
        process = start(tools.server_command(file.absolute(), socket, context), Path(name), log)
        try:
            transport = httpx.HTTPTransport(uds=str(socket))
            with httpx.Client(transport=transport, base_url="http://llama", timeout=_ANSWER_SECONDS) as client:
                _wait(client, process, file, log)
                yield LlamaServer(client)
        finally:
            stop(process)


def _wait(client: httpx.Client, process: Any, file: Path, log: Path) -> None:
    """Return when the file is loaded."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunError(f"llama.cpp cannot load {file.name}; the end of its output:\n{end_of(log)}")
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
    raise RunError(f"llama.cpp has not loaded {file.name} within {_START_SECONDS:.0f} s")
