"""`stepweave serve`: answer HTTP requests until the process is told to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ..graph.errors import StepweaveError
from .loading import loaded_async, warming_up
from .planned import runnable
from .reporting import USAGE, Exit, say
from .settings import overrides

if TYPE_CHECKING:
    from ..server.otel import Spans
    from ..serving.async_llm import AsyncLLM
    from .verbs import ServeOptions

NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")
"""What the extra `server` installs, without which nothing is served."""


class ServeError(StepweaveError):
    """The service cannot be started as it was asked for."""

    code = "SW-SERVE"
    names_nothing = True  # the command is wrong


LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""What this machine is called by those who are on it."""

OTEL = ("opentelemetry.sdk", "opentelemetry.exporter")
"""The same for the extra `otel`, without which no spans are sent."""


def serve(asked: ServeOptions) -> int:
    """Listen, load, serve; 0 after an ordered end. Raises `ServeError`, before it loads a model."""
    _need(NEEDED, "`stepweave serve`", "server")
    keys = tuple(asked.api_key or ())
    if any(not key.strip() or not key.isascii() for key in keys):
        raise ServeError("--api-key must be a text of ASCII letters, and not empty")
    changes = dict(overrides(asked.settings))
    if asked.model is not None:
        changes["model.name"] = asked.model
    config = runnable(asked.config, changes)
    from ..server.logs import log_to_stderr
    from ..server.run import listening, serve
    from ..server.settings import Settings

    log_to_stderr(asked.log_level)
    spans = _spans(asked.otlp_traces_endpoint)
    try:
        bound = listening(asked.host, asked.port)
    except OSError as error:
        where = f"{asked.host}:{asked.port}"
        raise ServeError(f"{where} cannot be listened on: {error.strerror or error}") from error
    with bound:
        llm = loaded_async(config)
        if config.captured:
            with warming_up() as on_warm_up:
                llm.warm_up(on_warm_up)
        names = tuple(asked.served_model_name or (config.model.name,))
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        local = ip_address(host).is_loopback
        settings = Settings(
            models=names,
            api_keys=keys,
            hosts=frozenset({asked.host, *LOCAL_NAMES}) if local and not keys else None,
            sampling=_sampling(llm) if asked.generation_config == "auto" else {},
            recorder=asked.recorder,
            keep_alive_s=asked.keep_alive_s or None,
            drain_s=asked.drain_s,
        )
        if not keys and not local:
            say(f"warning: without --api-key everybody who reaches {shown}:{port} may use it")

        def ready() -> None:
            print(f"serving {names[0]} at http://{shown}:{port}", flush=True)

        serve(llm, settings, bound, observers=spans, on_ready=ready)
        for each in spans:
            each.close()
    return 0


def _sampling(llm: AsyncLLM) -> Mapping[str, Any]:
    """What the model's `generation_config.json` says of requests. Raises `ServeError`."""
    from ..requests.params import RequestError, SamplingParams

    found = llm.engine.model.sampling_defaults
    try:
        SamplingParams.of(found)
    except RequestError as error:
        raise ServeError(
            f"generation_config.json of {llm.config.model.name}: {error}; "
            "--generation-config none serves the model without it"
        ) from error
    return found


def _spans(endpoint: str | None) -> Sequence[Spans]:
    if endpoint is None:
        return ()
    if not endpoint.startswith(("http://", "https://")):
        raise ServeError(
            f"--otlp-traces-endpoint must be an address such as http://localhost:4318/v1/traces, "
            f"not {endpoint[:80]!r}"
        )
    _need(OTEL, "--otlp-traces-endpoint", "otel")
    from ..server.otel import exported_to

    return (exported_to(endpoint),)


def _need(modules: Sequence[str], what: str, extra: str) -> None:
    """Raises `Exit` where a module is not installed."""
    if missing := [each for each in modules if not _there(each)]:
        say(f"error: {what} needs {', '.join(missing)}: pip install 'stepweave[{extra}]'")
        raise Exit(USAGE)


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
