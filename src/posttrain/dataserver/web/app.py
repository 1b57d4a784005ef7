"""HTTP routes of the dataserver."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Lifespan

from posttrain.dataserver.schemas import GradeRequest, GradeResponse, Meta, Problem, SampleRequest, SampleResponse
from posttrain.dataserver.server import DataServer
from posttrain.dataserver.step_reports import StepReport, StepResponse
from posttrain.dataserver.web import dashboard
from posttrain.dataserver.web.refusals import failure_response, refusal_response
from posttrain.web.json_bodies import JsonRoute
from posttrain.web.middleware import BodyLimit, ClearHeaders, RequestLog, TokenCheck
from posttrain.web.refusal import Refusal

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The prompts have fewer substitutes than `attempt` says"},
    401: {"model": Problem, "description": "The token is missing or wrong"},
    409: {"model": Problem, "description": "The server has another config, or the request id was used before"},
    413: {"model": Problem, "description": "The body is too large"},
    422: {"model": Problem, "description": "The request is malformed; `fields` says where"},
    429: {"model": Problem, "description": "Too much is waiting; come back after Retry-After seconds"},
    503: {"model": Problem, "description": "Not ready, or without its journal; come back after Retry-After seconds"},
}

# An item has about twelve values; a body with more than twice as many for each item that it may hold is no request.
_VALUES_PER_ITEM = 32

# How many wrong fields of a request are reported.
_SHOWN_FIELDS = 20


router = APIRouter(route_class=JsonRoute)


def _server(request: Request) -> DataServer:
    server: DataServer = request.app.state.server
    if not server.is_ready:
        raise Refusal("not_ready", "the gold answers are being checked; try again soon")
    return server


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is up."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: _REFUSALS[503]})
async def readyz(request: Request) -> dict[str, str]:
    """Prompts and rewards are served."""
    return {"status": "ready", "config_id": _server(request).meta.config_id}


@router.get("/meta", responses={401: _REFUSALS[401]})
async def meta(request: Request) -> Meta:
    """What a trainer checks before it starts."""
    return request.app.state.server.meta


@router.post("/sample", response_model=SampleResponse, responses=_REFUSALS)
async def sample(request: Request, body: SampleRequest) -> Response:
    """The prompts in some slots of an iteration: equal requests have equal answers."""
    return _as_json(await _server(request).service.sample(body))


@router.post("/grade", response_model=GradeResponse, responses=_REFUSALS)
async def grade(request: Request, body: GradeRequest) -> Response:
    """The rewards of completions, in their order; one that cannot be graded costs the others nothing."""
    return _as_json(await _server(request).service.grade(body))


@router.post("/steps", response_model=StepResponse, responses=_REFUSALS)
async def steps(request: Request, body: StepReport) -> Response:
    """Store what a trainer reports of an optimizer step; a later report of the same step replaces it."""
    return _as_json(await _server(request).service.report_step(body))


def _as_json(answer: BaseModel) -> Response:
    """Serialise the answer directly: a model that was built here needs no second validation."""
    return Response(answer.model_dump_json(), media_type="application/json")


@router.get("/metrics", responses={401: _REFUSALS[401]}, response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' text format."""
    exposition = request.app.state.server.metrics.exposition()
    return PlainTextResponse(exposition, media_type="text/plain; version=0.0.4")


def create_app(server: DataServer, lifespan: Lifespan[FastAPI], token: str | None, hosts: list[str] | None) -> FastAPI:
    """Create the app of a server; routes find the server in `app.state.server`.

    Args:
        token: what every request but the health checks must carry; None admits everyone.
        hosts: names under which the server may be addressed, so that no web page can reach it under its own name;
            None accepts any.
    """
    paths = [route.path for route in (*router.routes, *dashboard.router.routes) if isinstance(route, APIRoute)]
    middleware = [
        Middleware(RequestLog, paths=paths, failed=failure_response, count=server.metrics.request),
        Middleware(ClearHeaders, respond=refusal_response),
    ]
    if hosts is not None:
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    if token is not None:
        middleware.append(Middleware(TokenCheck, respond=refusal_response, token=token))
    limits = server.loaded.config.limits
    together = int(limits.bodies_mb * 2**20)
    sizes = {"max_bytes": limits.body_bytes, "max_bytes_together": together}
    names = ("limits.body_mb", "limits.bodies_mb")
    middleware.append(Middleware(BodyLimit, respond=refusal_response, **sizes, names=names))
    app = FastAPI(
        title="toolkit-rl-dataserver",
        version=version("posttrain-toolkit"),
        summary="Prompts and rewards for reinforcement learning.",
        lifespan=lifespan,
        middleware=middleware,
        docs_url=None,  # its page loads code from other servers
        redoc_url=None,
    )
    app.state.server = server
    app.state.most_values = _VALUES_PER_ITEM * (limits.items + 1)
    app.include_router(router)
    app.include_router(dashboard.router)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _failed)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refusal_response(error)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[:_SHOWN_FIELDS]
    problems = {(".".join(map(str, problem["loc"][1:])) or "body")[:200]: problem["msg"] for problem in first}
    lines = [f"{field}: {message}" for field, message in problems.items()]
    return refusal_response(Refusal("bad_request", "; ".join(lines)), list(problems))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: an unknown path, a wrong method, a body that is not JSON."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "bad_request"
    problem = Problem(code=code, message=str(error.detail))
    return JSONResponse(problem.model_dump(), error.status_code, error.headers)
