"""Our routing inside Ray's: what the fleet tells of a work reaches the replica that has it."""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own modules, while they are imported
    pytest.importorskip("ray.serve")

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models.source import resolve
from stepweave.replicas import on_ray
from stepweave.replicas.errors import RayUnavailable
from stepweave.replicas.fleet import About
from stepweave.replicas.live import ROUTERS
from stepweave.replicas.prefix_router import ATTEMPT, PrefixRouter
from stepweave.replicas.work import Work
from stepweave.requests.limits import Limits
from stepweave.requests.params import SamplingParams
from stepweave.serving.alike import Likeness


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), unique_id=name)


REPLICAS = [replica("a"), replica("b")]


@pytest.fixture
def router() -> Any:
    """One of two replicas, that take two works each; without what Ray makes beside it."""
    made: Any = PrefixRouter.__new__(PrefixRouter)
    made.initialize_state(app="test", most=2)
    made._replicas = {each.replica_id.unique_id: each for each in REPLICAS}
    made._router.keep(["a", "b"])
    assert ROUTERS.pop("test") is made
    return made


def pending(attempt: str) -> Any:
    work = {**Work(attempt, 0, (1, 2), SamplingParams()).to_json(), ATTEMPT: attempt}
    return SimpleNamespace(
        args=[work],
        metadata=SimpleNamespace(internal_request_id=f"ray-{attempt}"),
        future=SimpleNamespace(cancelled=lambda: False),
    )


def chosen(router: Any, request: Any) -> list[str]:
    ranks = asyncio.run(router.choose_replicas(REPLICAS, request))
    return [each.replica_id.unique_id for [each] in ranks]


def test_a_replica_that_lost_a_work_comes_last_until_it_answers(router: Any) -> None:
    assert chosen(router, pending("1")) == ["a", "b"]
    router.lost("1")
    router.lost("unknown")
    assert (chosen(router, pending("2")), router.live) == (["b", "a"], 1)
    assert chosen(router, pending("3")) == ["b", "a"]
    router.heard("1")
    assert (chosen(router, pending("4")), router.live) == (["a", "b"], 2)


def test_what_ray_sent_elsewhere_is_there(router: Any) -> None:
    request = pending("1")
    chosen(router, request)
    router.on_request_routed(request, REPLICAS[1].replica_id, None)
    router.lost("1")
    assert chosen(router, pending("2"))[0] == "a"
    router.on_request_completed(REPLICAS[1].replica_id, "ray-1")
    router.heard("1")  # it is over: nothing is known of where it was
    assert router.live == 1


def test_there_is_room_until_each_has_more_than_it_takes(router: Any) -> None:
    for attempt in range(4):
        chosen(router, pending(f"{attempt}"))
        assert router.has_room
    chosen(router, pending("5"))
    assert router.has_room  # one waits at `a`; what `b` has, it works on
    chosen(router, pending("6"))
    assert not router.has_room


def test_calls_that_are_no_work_are_routed_and_never_lost(router: Any) -> None:
    request = pending("1")
    request.args = []
    assert chosen(router, request) == ["a", "b"]
    router.lost("1")
    assert router.live == 2


def test_a_cluster_that_does_not_come_up_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_slow(**given: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", too_slow)
    with pytest.raises(RayUnavailable, match=r"cannot start on this machine .*timed out during"):
        on_ray._join_or_start_cluster(1)


def replicas_of(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a cluster, on which replicas `chat` run this pipeline."""
    about = About(Limits(4, 64, 16, 8, 128, 3, 9), "abc", Likeness.of(config), {})
    answer = SimpleNamespace(result=lambda timeout_s: json.loads(json.dumps(about.to_json())))
    handle = SimpleNamespace(
        about=SimpleNamespace(remote=lambda: answer),
        options=lambda stream: SimpleNamespace(generate=None),
    )
    there = SimpleNamespace(applications={"chat": None})
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.serve.start", lambda **given: None)
    monkeypatch.setattr("ray.serve.status", lambda: there)
    monkeypatch.setattr("ray.serve.get_app_handle", lambda name: handle)


def test_a_front_takes_replicas_whose_model_lies_elsewhere_and_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline(folder: str, **changes: Any) -> PipelineConfig:
        shutil.copytree(resolve("embedded-draft"), tmp_path / folder, dirs_exist_ok=True)
        found = load_config("async", {"model.name": f"{tmp_path / folder}", **changes})
        assert isinstance(found, PipelineConfig)
        return found

    replicas_of(pipeline("there"), monkeypatch)
    on_ray.RayFleet.of_another(pipeline("here"), "chat").close()
    with pytest.raises(RayUnavailable, match="'chat' on this cluster run another pipeline: give"):
        on_ray.RayFleet.of_another(pipeline("here", depth=3), "chat")
    config = pipeline("here")
    (tmp_path / "here" / "generation_config.json").write_text("{}")
    with pytest.raises(RayUnavailable, match=r"run another model \(model\.name\): give"):
        on_ray.RayFleet.of_another(config, "chat")
