"""The collector rests while public names are imported, and only then."""

from __future__ import annotations

import gc
from types import ModuleType, SimpleNamespace

import pytest

from stepweave.graph import public
from stepweave.graph.collector import collector_paused


def test_the_collector_rests_within_and_is_as_before_afterwards() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled(), "whoever paused it first ends the pause"
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_paused():
        raise ImportError
    assert gc.isenabled()


def test_a_public_name_is_imported_while_it_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[bool] = []

    def import_module(name: str, package: str) -> ModuleType | SimpleNamespace:
        rested.append(not gc.isenabled())
        return SimpleNamespace(LLM="loaded")

    monkeypatch.setattr(public, "import_module", import_module)
    assert public.load("stepweave", "LLM") == "loaded"
    assert rested == [True]
    assert gc.isenabled()
