"""Replicas that the cluster knows by name and that do not answer; a stand-in is in Ray's place."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stepweave import replicas
from stepweave.replicas.errors import RayUnavailable
from stepweave.replicas.scale import Scale
from stepweave.serving.arguments import chosen


class RayServeException(Exception):
    pass


class Unavailable(RayServeException):
    """What Ray raises for a deployment that could not be started."""


class Cluster:
    """One on which there are replicas `chat`. `failure` is raised where they are asked."""

    def __init__(self, failure: type[Exception]) -> None:
        self.failure, self.deployed = failure, list[str]()

    def result(self, timeout_s: float) -> None:
        raise self.failure

    def handle(self, name: str) -> Any:
        return SimpleNamespace(
            about=SimpleNamespace(remote=lambda: self),
            options=lambda stream: SimpleNamespace(generate=None),
        )


@pytest.fixture
def on_ray(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """The module over a cluster whose replicas fail by `request.param`."""
    cluster = Cluster(request.param)
    engine = SimpleNamespace(bind=lambda config: None)
    parts: dict[str, dict[str, Any]] = {
        "ray": {
            "is_initialized": lambda: True,
            "nodes": lambda: [{"Alive": True, "Resources": {"CPU": 9.0}}],
        },
        "ray.serve": {
            "status": lambda: SimpleNamespace(applications={"chat": None}),
            "start": lambda **given: None,
            "get_app_handle": cluster.handle,
            "deployment": lambda made: SimpleNamespace(options=lambda **given: engine),
            "run": lambda made, name, route_prefix: cluster.deployed.append(name),
        },
        "ray.exceptions": {"RayError": type("RayError", (Exception,), {})},
        "ray.serve.exceptions": {"RayServeException": RayServeException},
        "ray.serve.config": {"AutoscalingConfig": dict, "RequestRouterConfig": dict},
        "ray.serve.request_router": dict.fromkeys(
            ("PendingRequest", "ReplicaID", "RequestRouter", "RunningReplica"), object
        ),
    }
    for name, has in parts.items():
        module = ModuleType(name)
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, name, module)
    vars(sys.modules["ray"])["serve"] = sys.modules["ray.serve"]
    for own in ("on_ray", "prefix_router"):
        monkeypatch.setattr(replicas, own, None, raising=False)
        name = f"{replicas.__name__}.{own}"
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # undone: what was there before
        del sys.modules[name]
    made = importlib.import_module(f"{replicas.__name__}.on_ray")
    return SimpleNamespace(RayFleet=made.RayFleet, cluster=cluster)


@pytest.mark.parametrize("on_ray", [Unavailable, TimeoutError], indirect=True)
def test_replicas_that_could_not_be_started_are_started_anew(on_ray: Any) -> None:
    on_ray.RayFleet(chosen(None, "async", None), Scale(1, 1), "chat")
    assert on_ray.cluster.deployed == ["chat"]


@pytest.mark.parametrize("on_ray", [Unavailable, TimeoutError], indirect=True)
def test_who_joins_replicas_that_do_not_answer_is_told_so(on_ray: Any) -> None:
    config = chosen(None, "async", None)
    with pytest.raises(RayUnavailable, match="'chat' on the cluster do not answer"):
        on_ray.RayFleet.of_another(config, "chat")
    with pytest.raises(RayUnavailable, match="no replicas named 'other' are on the cluster"):
        on_ray.RayFleet.of_another(config, "other")
    assert on_ray.cluster.deployed == []
