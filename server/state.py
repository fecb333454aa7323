"""The routes that tell of the service itself: its model, its version, and how it is."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from .documents import documented
from .open_engine import OpenEngine
from .protocol.answers import ModelList, ModelObject, StateAnswer, VersionAnswer


def state_router(engine: OpenEngine) -> APIRouter:
    """GET /v1/models, /v1/models/{name}, /version, /health and /ready."""
    router = APIRouter()

    def described(name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": engine.started,
            "owned_by": "stepweave",
            "root": engine.adapters.get(name, engine.front.config.model.name),
            "parent": engine.settings.models[0] if name in engine.adapters else None,
            "max_model_len": engine.context_length,
        }

    async def models() -> Response:
        data = [described(each) for each in engine.names]
        return JSONResponse({"object": "list", "data": data})

    async def model(name: str) -> Response:
        return JSONResponse(described(engine.model_named(name)))

    async def tell_version() -> Response:
        return JSONResponse({"version": version("stepweave")})

    async def health() -> Response:
        alive = engine.front.alive
        return _state("ok" if alive else "the engine has failed", alive)

    async def ready() -> Response:
        if engine.draining:
            return _state("draining", False)
        return await health()

    known = (401, 421, 431)
    for path, route, answer, statuses, summary in (
        ("/v1/models", models, ModelList, known, "The names of the model."),
        ("/v1/models/{name:path}", model, ModelObject, (*known, 404), "One name of the model."),
        ("/version", tell_version, VersionAnswer, known, "The version of Stepweave."),
        ("/health", health, StateAnswer, (421, 431), "Whether the engine runs; 503 if it is dead."),
        ("/ready", ready, StateAnswer, (421, 431), "Whether requests are taken; 503 if not."),
    ):
        router.add_api_route(
            path,
            route,
            methods=["GET"],
            summary=summary,
            **documented(answer=answer, statuses=statuses, or_503=answer is StateAnswer),
        )
        # Some load balancers ask for the status alone.
        router.add_api_route(path, route, methods=["HEAD"], include_in_schema=False)
    return router


def _state(status: str, well: bool) -> Response:
    return JSONResponse({"status": status}, 200 if well else 503)
