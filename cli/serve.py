"""`stepweave serve`: answer HTTP requests until the process is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from ..graph.errors import StepweaveError
from ..replicas.scale import Scale
from .importing import for_good
from .loading import loaded_async, warming_up
from .planned import runnable
from .ranks import as_ranks
from .reporting import UNSOUND, USAGE, Exit, say
from .serve_replicas import FLEET, serve_many
from .settings import of_model, with_ranks

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..server.otel import Spans
    from ..server.settings import Settings
    from .verbs import ServeOptions

NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")
"""What the extra `server` installs, without which nothing is served."""


class ServeError(StepweaveError):
    """The service cannot be started as it was asked for."""

    code = "SW-SERVE"
    names_nothing = True  # the command is wrong


LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""What this machine is called by those who are on it."""

RAY = ("ray",)
"""The same for the extra `ray`, without which there are no replicas."""

MOST_REPLICAS = 1024

OTEL = ("opentelemetry.sdk", "opentelemetry.exporter")
"""The same for the extra `otel`, without which no spans are sent."""


def serve(asked: ServeOptions) -> int:
    """Listen, load, serve; 0 after an ordered end, 1 where the ranks of the model have failed.

    Raises `ServeError`, before it loads a model.
    """
    _need(NEEDED, "`stepweave serve`", "server")
    scale = scale_of(asked.replicas, asked.drain_s, asked.idle_s)
    if asked.replicas is not None or asked.fleet is not None:
        _need(RAY, "--fleet" if scale is None else "--replicas", "ray")
    keys = tuple(asked.api_key or ())
    if any(not key or key != key.strip() or not key.isascii() for key in keys):
        raise ServeError("--api-key must be a text of ASCII letters, with no space at its ends")
    if not all(name.strip() for name in asked.served_model_name or ()):
        raise ServeError("--served-model-name must not be empty")
    changes = with_ranks(of_model(asked.settings, asked.model), asked.tp, asked.pp)
    config = runnable(asked.config, changes)
    if taken := sorted(set(_models(asked, config)) & set(config.model.adapters)):
        raise ServeError(
            f"model.adapters: {taken[0]!r} is what the model itself is served as; rename the "
            "adapter, or give --served-model-name"
        )
    from ..server.logs import log_to_stderr
    from ..server.run import LAST_RESORT_S, listening

    alone = asked.replicas is None and asked.fleet is None
    if alone and (followed := as_ranks(config, asked.drain_s + 2 * LAST_RESORT_S)) is not None:
        return followed
    log_to_stderr(asked.log_level)
    spans = _spans(asked.otlp_traces_endpoint)
    try:
        bound = listening(asked.host, asked.port)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host has that form
        where, why = f"{asked.host}:{asked.port}", getattr(error, "strerror", None) or error
        raise ServeError(f"{where} cannot be listened on: {why}") from error
    with bound:
        host, port = bound.getsockname()[:2]
        if not keys and not ip_address(host).is_loopback:
            where = _shown(host)
            say(f"warning: without --api-key everybody who reaches {where}:{port} may use it")
        status = 0
        if alone:
            status = _one(asked, config, bound, spans)
        else:
            serve_many(
                config,
                scale,
                asked.fleet or FLEET,
                bound,
                configured=partial(_settings, asked, config, bound),
                spans=spans,
                ready=partial(_ready, bound),
            )
        for each in spans:
            each.close()
    return status


def _one(
    asked: ServeOptions, config: PipelineConfig, bound: socket.socket, spans: Sequence[Spans]
) -> int:
    """Serve with one engine, in this process and in those of the ranks that follow it."""
    from ..server.run import serve

    llm = loaded_async(config)
    if config.captured:
        with warming_up() as on_warm_up:
            llm.warm_up(on_warm_up)
    for_good()
    settings = _settings(asked, config, bound, llm.engine.model.sampling_defaults)
    served = serve(llm, settings, bound, observers=spans, on_ready=_ready(bound, settings))
    return 0 if served else UNSOUND


def _models(asked: ServeOptions, config: PipelineConfig) -> tuple[str, ...]:
    """The names of the model itself."""
    return tuple(asked.served_model_name or (config.model.name,))


def _settings(
    asked: ServeOptions, config: PipelineConfig, bound: socket.socket, sampling: Mapping[str, Any]
) -> Settings:
    """How the service is run. Raises `ServeError`."""
    from ..server.settings import Settings

    keys = tuple(asked.api_key or ())
    local = ip_address(bound.getsockname()[0]).is_loopback
    return Settings(
        models=_models(asked, config),
        api_keys=keys,
        hosts=frozenset({asked.host.lower(), *LOCAL_NAMES}) if local and not keys else None,
        sampling=_sampling(config, sampling) if asked.generation_config == "auto" else {},
        recorder=asked.recorder,
        keep_alive_s=asked.keep_alive_s or None,
        drain_s=asked.drain_s,
    )


def _ready(bound: socket.socket, settings: Settings) -> Callable[[], None]:
    host, port = bound.getsockname()[:2]
    said = f"serving {settings.models[0]} at http://{_shown(host)}:{port}"
    return lambda: print(said, flush=True)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def scale_of(text: str | None, drain_s: float, idle_s: float | None = None) -> Scale | None:
    """What `--replicas` says: `4`, or `2-8`. None where it is not given. Raises `ServeError`."""
    if idle_s is not None and "-" not in (text or ""):
        raise ServeError("--idle-s ends engines of a range: give one, as --replicas 2-8")
    if text is None:
        return None
    least, dash, most = text.partition("-")
    said = (least, most if dash else least)
    numbers = [each for each in said if each.isascii() and each.isdecimal()]
    if len(numbers) != 2 or not 1 <= int(numbers[0]) <= int(numbers[1]) <= MOST_REPLICAS:
        raise ServeError(
            f"--replicas must be a number such as 4, or a range such as 2-8, from 1 to "
            f"{MOST_REPLICAS}, not {text[:40]!r}"
        )
    scale = Scale(int(numbers[0]), int(numbers[1]), drain_s)
    return scale if idle_s is None else replace(scale, idle_s=idle_s)


def _sampling(config: PipelineConfig, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the model's `generation_config.json` says of requests. Raises `ServeError`."""
    from ..requests.params import RequestError, SamplingParams

    try:
        SamplingParams.of(found)
    except RequestError as error:
        raise ServeError(
            f"generation_config.json of {config.model.name}: {error}; "
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
