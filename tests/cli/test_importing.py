"""The collector does not look at what is imported for good."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from stepweave.cli import importing as module
from stepweave.cli import loading
from stepweave.cli.importing import for_good, importing, own_process
from stepweave.configs.load import load_config
from tests.memory import settle


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generation of each collection that begins in the test."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is the command's own; what tests have left is frozen already."""
    monkeypatch.setattr(module, "_own_process", False)
    own_process()
    settle()


@pytest.mark.usefixtures("own")
def test_nothing_is_collected_meanwhile_and_what_is_there_is_frozen(collections: list[int]) -> None:
    before = gc.get_freeze_count()
    with importing():
        made = [[number] for number in range(100_000)]
        assert collections == []
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


@pytest.mark.usefixtures("own")
def test_what_is_loaded_is_for_good_but_not_what_is_garbage_already() -> None:
    before = gc.get_freeze_count()
    loop: list[object] = [[number] for number in range(10_000)]
    loop.append(loop)
    here = weakref.ref(referred := Referred(loop))
    loop.append(referred)
    kept = [[number] for number in range(100_000)]
    del loop, referred
    for_good()
    assert here() is None, "it was collected before"
    assert before + len(kept) <= gc.get_freeze_count() < before + len(kept) + 10_000


def test_of_others_nothing_is_for_good() -> None:
    before, kept = gc.get_freeze_count(), [[number] for number in range(100_000)]
    for_good()
    assert gc.get_freeze_count() < before + len(kept)


class Referred:
    """What a weak reference can be made to."""

    def __init__(self, loop: object) -> None:
        self.loop = loop


def test_in_a_process_of_others_nothing_is_frozen(collections: list[int]) -> None:
    before = gc.get_freeze_count()
    with importing():
        made = [[number] for number in range(100_000)]
        assert collections == []
    assert gc.isenabled()
    assert gc.get_freeze_count() < before + len(made)


def test_who_has_turned_the_collector_off_finds_it_off(collections: list[int]) -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("load", [loading.loaded, loading.loaded_async])
def test_the_libraries_of_a_model_are_imported_so_and_the_model_is_not(
    load: Any, collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, frozen = gc.get_freeze_count(), list[int]()
    monkeypatch.setattr(loading, "_made", lambda *_: frozen.append(gc.get_freeze_count()))
    load(load_config("async"))
    assert frozen[0] > before
