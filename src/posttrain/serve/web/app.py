"""HTTP routes of OpenAI's API."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Lifespan

from posttrain.errors import ToolkitError
from posttrain.serve import wire
from posttrain.serve.answers import Answers
from posttrain.serve.asked import prepare
from posttrain.serve.batching import Batcher, Ended, Scored
from posttrain.serve.config import ServeLimits
from posttrain.serve.models import Models
from posttrain.serve.schemas import ChatRequest, CompletionRequest
from posttrain.web.json_bodies import JsonRoute
from posttrain.web.middleware import BodyLimit, ClearHeaders, RequestLog, TokenCheck
from posttrain.web.refusal import Refusal

# More than a prompt of a million ids has.
_MOST_VALUES = 2_000_000
_SHOWN_FIELDS = 5
# As other servers record requests whose client disconnected; nobody reads it.
_NOT_ANSWERED = 499
_BODIES_TOGETHER = 8

router = APIRouter(route_class=JsonRoute)


@dataclass(frozen=True)
class Backend:
    """What routes use: the models, the thread that encodes prompts, the one that answers, and the limits."""

    models: Models
    encoding: ThreadPoolExecutor
    batcher: Batcher
    limits: ServeLimits
    started: int


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """The process is up, and its model answers."""
    if not _backend(request).batcher.is_alive:
        raise Refusal("unavailable", "the thread that answers has ended; see the server's log")
    return {"status": "ok"}


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The names of all models."""
    backend = _backend(request)
    return {"object": "list", "data": [_model(backend, name) for name in backend.models.weights]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    backend = _backend(request)
    if name not in backend.models.weights:
        raise Refusal("not_found", f"there is no model {name[:100]!r}")
    return _model(backend, name)


def _model(backend: Backend, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": backend.started, "owned_by": "posttrain-toolkit"}


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    return await _answered(request, body)


@router.post("/v1/completions", response_model=None)
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue prompts of text or of token ids."""
    return await _answered(request, body)


async def _answered(request: Request, body: ChatRequest | CompletionRequest) -> Response:
    backend, loop = _backend(request), asyncio.get_running_loop()
    deadline = loop.time() + backend.limits.seconds
    prepared = partial(prepare, backend.models, body, backend.limits.n)
    asked = await loop.run_in_executor(backend.encoding, prepared)
    answers = Answers(backend.batcher, body.model, asked, body.seed is not None, deadline)
    form = wire.Form(body.model, asked, isinstance(body, ChatRequest))
    if body.stream:
        options = body.stream_options
        chunks = _chunks(answers, form, options is not None and options.include_usage)
        return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    return await _unless_gone(request, answers, form)


async def _unless_gone(request: Request, answers: Answers, form: wire.Form) -> Response:
    """The whole answer, for which nothing more is done once the client is gone."""
    collecting = asyncio.create_task(_collected(answers, form))
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await collecting) if collecting.done() else Response(status_code=_NOT_ANSWERED)
    finally:
        for task in (collecting, leaving):
            task.cancel()
        answers.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _collected(answers: Answers, form: wire.Form) -> dict[str, Any]:
    texts: dict[int, str] = {}
    ended: dict[int, Ended] = {}
    scored: dict[int, Scored] = {}
    async with aclosing(answers.events()) as events:
        async for place, event in events:
            if isinstance(event, Scored):
                scored[place] = event
                continue
            index = form.index(place, event.choice)
            texts[index] = texts.get(index, "") + event.text
            if isinstance(event, Ended):
                ended[index] = event
    return form.whole(texts, ended, scored)


async def _chunks(answers: Answers, form: wire.Form, is_counted: bool) -> AsyncIterator[bytes]:
    ended: dict[int, Ended] = {}
    try:
        for chunk in form.first():
            yield chunk
        async with aclosing(answers.events()) as events:
            async for place, event in events:
                if isinstance(event, Scored):
                    continue
                index = form.index(place, event.choice)
                if event.text:
                    yield form.piece(index, event.text)
                if isinstance(event, Ended):
                    ended[index] = event
                    yield form.last(index, event)
        if is_counted:
            yield form.counted(ended)
    except Refusal as refusal:
        yield wire.failed_event(refusal)
    finally:
        answers.cancel()
    yield wire.DONE


def create_app(backend: Backend, lifespan: Lifespan[FastAPI], token: str | None, hosts: list[str] | None) -> FastAPI:
    """Create the app; routes find `backend` in `app.state`.

    Args:
        token: what every request but the health check must carry; None admits everyone.
        hosts: names under which the server may be addressed, so that no web page can reach it under its own name;
            None accepts any.
    """
    paths = [route.path for route in router.routes if isinstance(route, APIRoute)]
    middleware = [
        Middleware(RequestLog, paths=paths, failed=_failure),
        Middleware(ClearHeaders, respond=refusal_response),
    ]
    if hosts is not None:
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    if token is not None:
        middleware.append(Middleware(TokenCheck, respond=refusal_response, token=token))
    size = int(backend.limits.body_mb * 2**20)
    sizes = {"max_bytes": size, "max_bytes_together": _BODIES_TOGETHER * size}
    names = ("--limit body_mb", f"{_BODIES_TOGETHER} times --limit body_mb")
    middleware.append(Middleware(BodyLimit, respond=refusal_response, **sizes, names=names))
    app = FastAPI(
        title="toolkit-serve",
        version=version("posttrain-toolkit"),
        summary="Models of a run behind OpenAI's API.",
        lifespan=lifespan,
        middleware=middleware,
        docs_url=None,  # its page loads code from other servers
        redoc_url=None,
    )
    app.state.backend = backend
    app.state.most_values = _MOST_VALUES
    app.include_router(router)
    app.add_exception_handler(ToolkitError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _failed)
    return app


def refusal_response(refusal: Refusal, *, ends_connection: bool = False) -> JSONResponse:
    """The response to a refused request, in OpenAI's form."""
    headers = {"Connection": "close"} if ends_connection else {}
    if refusal.code in ("overloaded", "unavailable"):
        headers["Retry-After"] = "1"
    if refusal.code == "unauthorized":
        headers["WWW-Authenticate"] = 'Bearer realm="toolkit-serve"'
    if refusal.code == "too_slow":
        headers["x-should-retry"] = "false"  # the next time it would take as long
    return JSONResponse(wire.error_body(refusal.code, str(refusal)), wire.STATUS.get(refusal.code, 400), headers)


def _failure(request_id: str) -> JSONResponse:
    message = f"the server failed; see its log for the request id {request_id}"
    return refusal_response(Refusal("internal", message))


async def _refused(request: Request, error: Exception) -> Response:
    return refusal_response(error if isinstance(error, Refusal) else Refusal("unavailable", str(error)))


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems: dict[str, str] = {}
    for each in error.errors()[:_SHOWN_FIELDS]:
        place = ".".join(str(part) for part in each["loc"][1:])[:200] or "body"
        told = "is not supported by this server" if each["type"] == "extra_forbidden" else each["msg"]
        problems.setdefault(place, told)
    return refusal_response(Refusal("bad_request", "; ".join(f"{place}: {told}" for place, told in problems.items())))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    body = wire.error_body("bad_request", f"{request.method} {request.url.path[:100]}: {error.detail}")
    return JSONResponse(body, error.status_code, error.headers)


def _backend(request: Request) -> Backend:
    return request.app.state.backend
