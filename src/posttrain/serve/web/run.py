"""`toolkit-serve`: load a model, report the address, and serve until SIGTERM or Ctrl-C."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from posttrain.base.console import console
from posttrain.config.sections.generation import GenerationConfig
from posttrain.inference.load import load_text
from posttrain.inference.weights import ChosenWeights
from posttrain.serve import wire
from posttrain.serve.batching import Batcher
from posttrain.serve.config import ServeConfig
from posttrain.serve.models import Choice, Models, find_models
from posttrain.serve.web.app import Backend, create_app
from posttrain.web.connections import bounded_protocol
from posttrain.web.listening import allowed_hosts, bind, token_of, url_of
from posttrain.web.logs import set_up_logs
from posttrain.web.refusal import Code

# How long requests in progress may take after SIGTERM; then they are told that the server stops, for which there is
# as long as the thread that answers needs for its next token.
_GRACE_SECONDS = 5
_END_SECONDS = 10


@dataclass(frozen=True)
class ServeJob:
    """Which models are served, how they generate, and the server's settings."""

    weights: dict[str, ChosenWeights]
    generation: GenerationConfig
    config: ServeConfig

    @classmethod
    def of(cls, choice: Choice, kinds: Sequence[str], generation: GenerationConfig, config: ServeConfig) -> "ServeJob":
        """The job of a command line; errors as `find_models`."""
        return cls(find_models(choice, kinds), generation, config)

    @property
    def first(self) -> str:
        """The model that is loaded at the start."""
        return next(iter(self.weights))


class _Server(uvicorn.Server):
    """Ends the answers that still run after a while of a shutdown, so that their clients are told."""

    def __init__(self, batcher: Batcher, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._batcher = batcher

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down."""
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(_GRACE_SECONDS)
        await asyncio.to_thread(self._batcher.close, _END_SECONDS)


def serve(job: ServeJob, debug: bool) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: the address cannot be used, or the token is not set.
        ModelError: the first model cannot be loaded.
    """
    listen, limits = job.config.listen, job.config.limits
    say = set_up_logs(listen.log, debug, "posttrain.serve")
    token = token_of(listen, "--token-env")
    listener = bind(listen)
    _tell_models(job)
    models = Models(job.weights, job.generation, limits.loaded)
    batcher = Batcher(models, job.first, job.generation.batch_size, limits.queue)
    batcher.start()
    encoding = ThreadPoolExecutor(1, thread_name_prefix="prompts")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close, _END_SECONDS)
        encoding.shutdown(wait=False, cancel_futures=True)

    backend = Backend(models, encoding, batcher, limits, int(time.time()))
    web_server = _Server(
        batcher,
        uvicorn.Config(
            create_app(backend, lifespan, token, allowed_hosts(listen)),
            http=bounded_protocol(limits.connections, limits.receive_seconds, _described, "--limit "),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS + _END_SECONDS,
            lifespan="on",
        ),
    )

    def stop(number: int, frame: object) -> None:
        web_server.should_exit = True

    # uvicorn shuts down gracefully on SIGTERM and then passes the signal on; it may also come before uvicorn runs.
    signal.signal(signal.SIGTERM, stop)
    say(f"toolkit-serve listens on {url_of(listen, listener)}")
    web_server.run(sockets=[listener])


def check(job: ServeJob) -> None:
    """`--dry-run`: check everything that can be checked without loading weights, and print the plan.

    Raises:
        ConfigError: the token is not set.
        ModelError: a tokenizer cannot be loaded, or cannot end a turn.
    """
    token_of(job.config.listen, "--token-env")
    for chosen in job.weights.values():
        load_text(chosen.model, chosen.chat)
    _tell_models(job)
    console.print("nothing was loaded (--dry-run)")


def _tell_models(job: ServeJob) -> None:
    width = max(map(len, job.weights))
    for name, chosen in job.weights.items():
        console.print(f"model {name:<{width}}  {chosen}")


def _described(code: str, message: str) -> bytes:
    known: dict[str, Code] = {"unavailable": "unavailable", "too_large": "too_large", "too_slow": "too_slow"}
    return json.dumps(wire.error_body(known.get(code, "bad_request"), message)).encode()
