"""Replicas as a deployment of Ray Serve: Ray starts them, watches them, and starts them anew."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: nothing is reported

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException

from ..backends.registry import backend_of_name
from ..graph.errors import shortly
from ..models.tokenizer import load_tokenizer
from ..nodes.values import GROUP
from ..server.logs import SERVER
from ..serving.alike import Likeness
from .errors import RayUnavailable, ReplicaLost
from .fleet import About
from .gang import Gang
from .hosted import about, generated
from .live import ROUTERS, Routes
from .prefix_router import ATTEMPT, PrefixRouter
from .room import lack_of_room
from .scale import Scale
from .watch import watched
from .work import TAKEN, Message, Work

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig

HEALTH_PERIOD_S = 2.0
HEALTH_TIMEOUT_S = 10.0
"""A replica that does not answer for so long three times in a row is replaced: one that hangs."""

ANSWER_S = 10.0
"""How long replicas that may be there have to answer."""

DEPLOYMENT = "engine"

STARTS = 2
"""How often a replica may fail to start before the deployment has failed."""


class Engine:
    """The body of a replica: one engine, in a process that Ray has made."""

    def __init__(self, config: PipelineConfig) -> None:
        from ..serving.async_llm import AsyncLLM

        gang = Gang(config, _end) if config.ranks > 1 else None
        self._llm = AsyncLLM(pipeline=config)
        group = self._llm.engine.resource(GROUP)
        if gang is not None and group is not None:
            gang.ends_with(group.group)
        if config.captured:
            self._llm.warm_up()

    async def generate(self, work: Message) -> AsyncGenerator[Message]:
        """The messages of one work."""
        async for message in generated(self._llm, work):
            yield message

    async def about(self) -> Message:
        """What a front needs to know."""
        return about(self._llm).to_json()

    def check_health(self) -> None:
        """Ray calls this now and then, and replaces a replica that raises or does not answer.

        Raises `RuntimeError` where the engine has failed.
        """
        if not self._llm.service.alive:
            raise RuntimeError("the engine has failed")


def _end(why: str) -> None:
    """End this replica, so that Ray starts another at once; its requests go on elsewhere."""
    logging.getLogger("ray.serve").error("the ranks of this replica have ended: %s", why)
    os._exit(1)


class RayFleet:
    """The replicas of one deployment. `close` ends them, and nothing else of the cluster."""

    def __init__(self, config: PipelineConfig, scale: Scale | None, app: str) -> None:
        """Start as many as `scale` says, and wait until they serve; without one they are there.

        Replicas of the same name and pipeline, which a front has left behind, are replaced one by
        one. Raises `RayUnavailable`, also where those of that name run another pipeline, and
        `ModelNotFound` or `ModelError` for a model that this machine does not have.
        """
        load_tokenizer(config.model.name)  # the front needs it: better told before Ray starts
        self._config, self._scale, self._app = config, scale, app
        self._attempts = count()
        self._handle: Any = None
        self._streams: Any = None
        try:
            if not ray.is_initialized():
                _join_or_start_cluster(cpus=scale.most * config.ranks if scale else None)
            serve.start(proxy_location="Disabled")
            found = self._find()
            if scale is not None:
                self._require_room(scale)
                self._deploy(scale)
            elif found is None and self._there:
                raise RayUnavailable(
                    f"the replicas {app!r} on the cluster do not answer: they are being started, "
                    "or could not be"
                )
            elif found is None:
                raise RayUnavailable(f"no replicas named {app!r} are on the cluster")
        except (RayError, RayServeException, ConnectionError, RuntimeError, ValueError) as error:
            raise RayUnavailable(f"Ray cannot start the replicas: {self._why(error)}") from error

    @classmethod
    def of_another(cls, config: PipelineConfig, app: str) -> RayFleet:
        """The replicas that another front has started. `close` leaves them as they are.

        Raises `RayUnavailable` where there are none of that name and pipeline.
        """
        return cls(config, None, app)

    def _find(self) -> About | None:
        """What is known of replicas of this name that are there; None where none answers, as where
        the last ones could not be started.

        Raises `RayUnavailable` where they run another pipeline.
        """
        if not self._there:
            return None
        try:
            self._attach()
            found = About.of(self._handle.about.remote().result(timeout_s=ANSWER_S))
        except (TimeoutError, RayServeException):
            return None
        if (other := Likeness.of(self._config).difference(found.pipeline)) is not None:
            raise RayUnavailable(
                f"the replicas {self._app!r} on this cluster run {other}: give the same pipeline, "
                "with the same settings and models, or name others with --fleet"
            )
        return found

    @property
    def _there(self) -> bool:
        """Whether the cluster knows replicas of this name, whatever they do."""
        return self._app in serve.status().applications

    @property
    def live(self) -> int:
        """How many replicas take work."""
        router = self._router
        return 0 if router is None else router.live

    @property
    def _router(self) -> Routes | None:
        return ROUTERS.get(self._app)

    def about(self) -> About:
        """What the replicas have in common. Raises `RayUnavailable`."""
        try:
            return About.of(self._handle.about.remote().result())
        except (RayError, RayServeException) as error:
            raise RayUnavailable(f"no replica answers: {shortly(error)}") from error

    async def generate(self, work: Work) -> AsyncGenerator[Message]:
        """The messages of the replica that `PrefixRouter` chooses."""
        attempt = f"{next(self._attempts)}"
        response = self._streams.remote({**work.to_json(), ATTEMPT: attempt})
        try:
            async with aclosing(watched(aiter(response), waits=self._waits)) as messages:
                async for message in messages:
                    if message == TAKEN and self._router is not None:
                        self._router.heard(attempt)
                    yield message
        except Exception as error:  # whatever Ray raises, nobody is known to work on it
            if self._router is not None:
                self._router.lost(attempt)
            raise ReplicaLost(shortly(error)) from error
        finally:
            response.cancel()

    def _waits(self) -> bool:
        """Whether Ray may have given a work to nobody yet."""
        router = self._router
        return router is None or not router.has_room

    def restart(self) -> None:
        """Replace the replicas one after the other, while the others serve.

        Raises `RayUnavailable` where the new ones do not start; those that are left go on.
        """
        if self._scale is None:
            raise RayUnavailable("another front has started the replicas: it can replace them")
        try:
            self._deploy(self._scale)
        except (RayError, RayServeException, RuntimeError) as error:
            raise RayUnavailable(f"Ray cannot start the replicas: {self._why(error)}") from error

    def close(self) -> None:
        """End the replicas, if they were started here."""
        if self._scale is not None:
            serve.delete(self._app)

    def _why(self, error: Exception) -> str:
        """What an engine said that could not be started, if Ray knows; else what Ray says."""
        if not ray.is_initialized():  # asking would try to reach a cluster again
            return shortly(error)
        try:
            deployments = serve.status().applications[self._app].deployments
            said = deployments[DEPLOYMENT].message
        except (RayError, RayServeException, RuntimeError, KeyError):
            said = ""
        lines = [each.strip() for each in said.splitlines()]
        return next((each for each in reversed(lines) if each), None) or shortly(error)

    def _require_room(self, scale: Scale) -> None:
        """A cluster may grow: it is warned of. Raises `RayUnavailable` on this machine alone."""
        machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        lack = lack_of_room(self._need, scale.least, machines)
        if lack is not None and not os.environ.get("RAY_ADDRESS"):
            raise RayUnavailable(f"{lack}; give a smaller --replicas, or a cluster's RAY_ADDRESS")
        if lack is not None:
            SERVER.warning("%s; the others wait for machines that join the cluster", lack)

    @property
    def _need(self) -> dict[str, float]:
        """What a replica takes by Ray's account: all its ranks are on the machine of its actor."""
        ranks, on_host = self._config.ranks, backend_of_name(self._config.device).on_host
        return {"CPU": ranks, "GPU": 0 if on_host else ranks}

    def _attach(self) -> None:
        """Have one handle for all time: another would have a router that knows of nothing."""
        if self._handle is None:
            self._handle = serve.get_app_handle(self._app)
            self._streams = self._handle.options(stream=True).generate

    def _deploy(self, scale: Scale) -> None:
        config = self._config
        rows = config.scheduler.max_rows
        most = rows + config.scheduler.max_queue
        made: Any = serve.deployment(Engine).options(
            name=DEPLOYMENT,
            num_replicas=scale.least if scale.fixed else "auto",
            max_ongoing_requests=most,
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_timeout_s=scale.drain_s,
            max_constructor_retry_count=STARTS,
            ray_actor_options={"num_cpus": self._need["CPU"], "num_gpus": self._need["GPU"]},
            request_router_config=RequestRouterConfig(
                request_router_class=PrefixRouter,
                request_router_kwargs={"app": self._app, "most": most},
            ),
            **_autoscaling(scale, rows),
        )
        serve.run(made.bind(config), name=self._app, route_prefix=None)
        self._attach()


def _join_or_start_cluster(cpus: int | None) -> None:
    """The cluster of RAY_ADDRESS, or one of this machine alone, with so many CPUs by its account:
    the replicas that are asked for have room, on however few cores.

    Raises `RayUnavailable` where there has to be a cluster, and none is named or none answers, and
    where none can be started.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if address := os.environ.get("RAY_ADDRESS"):
        try:
            ray.init(address=address, namespace="stepweave", **quiet)
        except ConnectionError as error:
            raise RayUnavailable(
                f"no cluster answers at RAY_ADDRESS {address!r}; if it asks for a token, set "
                "RAY_AUTH_MODE=token here, too"
            ) from error
    elif cpus is None:
        raise RayUnavailable("RAY_ADDRESS has to name the cluster whose replicas are meant")
    else:
        own = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": cpus}
        try:
            ray.init(address="local", **own, **quiet)
        except Exception as error:  # a bare one, where its processes do not come up in time
            raise RayUnavailable(
                f"Ray cannot start on this machine ({shortly(error)}): try again when it has less "
                "to do, or name a cluster that runs with RAY_ADDRESS"
            ) from error


def _autoscaling(scale: Scale, rows: int) -> dict[str, Any]:
    """A replica more where those that are there have no free row on average."""
    if scale.fixed:
        return {}
    found = AutoscalingConfig(
        min_replicas=scale.least,
        max_replicas=scale.most,
        target_ongoing_requests=rows,
        downscale_delay_s=scale.idle_s,
    )
    return {"autoscaling_config": found}
