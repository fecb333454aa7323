"""The application: every route behind one gate, and one form for every error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..serving.flight import FlightRecorder
from .chat import chat_router
from .completions import completions_router
from .documents import BODIES, document
from .errors import ApiError
from .gate import Gate
from .insight import Insight
from .live.route import live_router
from .metrics.histograms import Latencies
from .metrics.route import Read, labels, metrics_router
from .observers import Observer
from .one_engine import OneEngine
from .open_engine import OpenEngine
from .responses import responses_router
from .settings import Settings
from .state import state_router
from .tokens import tokens_router

if TYPE_CHECKING:
    from ..serving.async_llm import AsyncLLM
    from .front import Front

Router = Callable[[OpenEngine], APIRouter]
"""Makes the routes of one subject for an engine."""

NOT_SERVED = {
    "/v1/embeddings": ": the model generates text",
}
"""Routes that clients of the API may look for, and what to say beside that they are not there."""

ROUTERS: tuple[Router, ...] = (
    *(chat_router, completions_router, responses_router, tokens_router, state_router),
)


def create_app(
    llm: AsyncLLM,
    settings: Settings,
    *,
    routers: Sequence[Router] = (),
    observers: Sequence[Observer] = (),
) -> FastAPI:
    """The API over an engine, its metrics and its live page.

    `app.state.engine` is what the routes share. `routers` and `observers` are added to those of
    the API. The engine is whoever's who made it: it is neither started nor closed here.
    """
    insight = Insight(llm)
    registry = CollectorRegistry()

    def looks(engine: OpenEngine) -> Sequence[APIRouter]:
        registry.register(Read(engine, insight))
        return [metrics_router(registry, insight.turn), live_router(engine, insight)]

    latencies = Latencies(registry, labels(settings.models[0]))
    _look_on(llm, settings, latencies)
    return app_over(
        OneEngine(llm), settings, latencies, looks=looks, routers=routers, observers=observers
    )


def app_over(
    front: Front,
    settings: Settings,
    latencies: Latencies,
    *,
    looks: Callable[[OpenEngine], Sequence[APIRouter]],
    routers: Sequence[Router] = (),
    observers: Sequence[Observer] = (),
) -> FastAPI:
    """The API over whatever generates, with the routes of `looks` for those who look on."""
    watching = (latencies, *observers)
    engine = OpenEngine(front, settings, watching)
    for body in BODIES:
        body.model_rebuild()  # now, not at the first request
    app = FastAPI(
        title="Stepweave",
        version=version("stepweave"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.engine = engine
    found = [router(engine) for router in (*ROUTERS, *routers)]
    found += looks(engine)
    for each in found:
        app.include_router(each)
    latencies.routes = [
        route for each in found for route in each.routes if isinstance(route, Route)
    ]
    app.add_middleware(Gate, settings=settings, observers=watching)
    app.add_exception_handler(ApiError, _told)
    app.add_exception_handler(HTTPException, _told)
    document(app)
    return app


def _look_on(llm: AsyncLLM, settings: Settings, latencies: Latencies) -> None:
    """Have the service note its last steps, and tell of the grammars that it compiles."""
    llm.service.record(FlightRecorder() if settings.recorder else None)
    if (grammars := llm.service.intake.grammars) is not None:
        grammars.on_compiled(latencies.compiled)


async def _told(request: Request, error: Any) -> Response:
    """Our errors as they are, and those of the framework in the same form."""
    if isinstance(error, ApiError):
        return error.response()
    path = request.url.path[:200]
    said = {
        404: f"there is no {path}{NOT_SERVED.get(path, '')}",
        405: f"{path} does not take {request.method[:20]}",
    }.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, said, headers=error.headers).response()
