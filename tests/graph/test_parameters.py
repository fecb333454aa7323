"""What a parameter may stand for, and how resources are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import OpContext, State, Value
from stepweave.graph.parameters import (
    Parameter,
    Resource,
    Resources,
    buffer,
    context,
    given,
    optional,
    optional_state,
    optional_update,
    parameters,
    read,
    settings,
    state,
    update,
    wanted,
)

COUNT = Value[int]("count")
TALLY = State[list[int]]("tally", make=list)
SIZE = Resource[int]("size")


# --- parameters


def test_each_parameter_says_by_its_default_what_it_gets() -> None:
    def work(
        count: int = read(COUNT),
        before: int = read(COUNT, 2),
        perhaps: int | None = optional(COUNT, 1),
        looked_at: list[int] = state(TALLY),
        changed: list[int] = update(TALLY),
        may_look: list[int] | None = optional_state(TALLY),
        may_change: list[int] | None = optional_update(TALLY),
        into: Any = buffer(COUNT),
        size: int = given(SIZE),
        chosen: str = settings(str),
        where: OpContext = context(),
        plain: int = 3,
    ) -> None: ...

    found = parameters(work)
    assert found["plain"] is None
    roles = {name: each.role for name, each in found.items() if each}
    assert roles == {
        "count": "read",
        "before": "read",
        "perhaps": "read",
        "looked_at": "state",
        "changed": "update",
        "may_look": "state",
        "may_change": "update",
        "into": "buffer",
        "size": "resource",
        "chosen": "options",
        "where": "context",
    }
    carries = {name: each.carry for name, each in found.items() if each and each.carry}
    assert carries == {"before": 2, "perhaps": 1}
    optional_ones = {name for name, each in found.items() if each and each.optional}
    assert optional_ones == {"perhaps", "may_look", "may_change"}


def test_a_parameter_without_a_default_reads_what_is_called_like_it() -> None:
    def work(count: int, ctx: OpContext) -> None: ...

    assert parameters(work) == {"count": Parameter("read", "count"), "ctx": Parameter("context")}


def _any(thing: object) -> Any:
    """A thing that a type checker lets pass."""
    return thing


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: read(_any(TALLY)),
            "read: its first argument must be a Value, or the name of one",
        ),
        (lambda: read(""), "its first argument must be a Value"),
        (lambda: optional(_any(SIZE)), "its first argument must be a Value"),
        (lambda: buffer(_any(TALLY)), "buffer: its first argument must be a Value"),
        (
            lambda: state(_any(COUNT)),
            "state: its first argument must be a State",
        ),
        (lambda: update(_any(COUNT)), "update: its first argument must be a State"),
        (
            lambda: optional_state(_any(7)),
            "its first argument must be a State, or the name of one",
        ),
        (lambda: optional_update(_any(COUNT)), "its first argument must be a State"),
        (lambda: given(_any(COUNT)), "its argument must be a Resource"),
        (lambda: read(COUNT, _any(1.5)), "read: carry"),
        (lambda: optional(COUNT, True), "optional: carry"),
    ],
)
def test_a_wrong_thing_in_a_default_is_told_when_it_is_declared(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        declare()


@pytest.mark.parametrize(
    ("of", "words"), [(COUNT, r"`read\("), (TALLY, r"or `update\("), (SIZE, r"`given\(")]
)
def test_a_forgotten_word_in_a_default_is_told(of: Any, words: str) -> None:
    def work(count: Any = of) -> None: ...

    told = rf"node 'work': the default of 'count' is a stepweave\..* Write .*{words}…\)` around it"
    with pytest.raises(GraphError, match=told) as caught:
        parameters(work)
    assert caught.value.code == "SW-SIGNATURE"


def test_a_value_state_and_resource_may_be_made_with_their_type_and_do_not_change() -> None:
    assert Value[int]("count") == COUNT
    assert Resource[int]("size") == SIZE
    assert wanted(COUNT).value is COUNT
    for each in (COUNT, TALLY, SIZE, wanted(COUNT)):
        with pytest.raises(FrozenInstanceError):
            each.name = "other"  # type: ignore[misc, union-attr]


def test_what_is_written_in_c_declares_no_parameter_and_can_make_things() -> None:
    assert parameters(list) == parameters(dict) == parameters(len) == {}
    assert Resources().of(Resource("made", make=dict)) == {}


# --- resources


def made_from(said: list[str]) -> tuple[Resource[str], Resource[str]]:
    """Two resources, the second made from the first; each making is noted in `said`."""

    def first(size: int = given(SIZE)) -> str:
        said.append("first")
        return "x" * size

    of_size = Resource("of_size", first)

    def second(text: str = given(of_size)) -> str:
        said.append("second")
        return f"<{text}>"

    return of_size, Resource("around_it", second)


def test_a_resource_is_made_when_it_is_first_asked_for_and_once() -> None:
    said: list[str] = []
    inner, outer = made_from(said)
    found = Resources({SIZE: 3})
    assert said == []
    assert found.get(outer) is None
    assert found.of(outer) == "<xxx>"
    assert found.of(outer) is found.of(outer)
    assert found.of(inner) == "xxx"
    assert said == ["first", "second"]
    assert found.made() == [3, "xxx", "<xxx>"]


def test_what_is_brought_is_not_made() -> None:
    said: list[str] = []
    inner, outer = made_from(said)
    found = Resources({inner: "mine"})
    assert (found.of(outer), said) == ("<mine>", ["second"])


def test_what_is_brought_anew_is_what_there_is_from_then_on() -> None:
    found = Resources({SIZE: 1})
    found.bring(SIZE, 2)
    assert (found.of(SIZE), found.get(SIZE)) == (2, 2)


def test_a_resource_that_nobody_brought_is_told_with_the_nearest_right_name() -> None:
    with pytest.raises(StepweaveError, match=r"no resource 'size' here \(did you mean 'sizes'\?\)"):
        Resources({Resource[int]("sizes"): 3}).of(SIZE)


class Named:
    """Options of a node; two of the same name are still of two nodes."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_what_is_made_of_options_is_made_once_for_each_node() -> None:
    said: list[str] = []

    def load(chosen: Named = settings(Named)) -> list[str]:
        said.append(chosen.name)
        return [chosen.name]

    loaded = Resource("loaded", load)

    def check(weights: list[str] = given(loaded), size: int = given(SIZE)) -> tuple[Any, int]:
        return weights, size

    checked = Resource("checked", check)

    def shared(size: int = given(SIZE)) -> list[int]:
        said.append("shared")
        return [size]

    common = Resource("common", shared)
    found, first, second = Resources({SIZE: 3}), Named("a"), Named("b")
    assert found.of(checked, first) == (["a"], 3)
    assert found.of(checked, second) == (["b"], 3), "though only what it is made of asks for them"
    assert found.of(loaded, first) is found.of(checked, first)[0]
    assert found.of(common, first) is found.of(common, second)
    assert said == ["a", "b", "shared"]


def test_options_that_are_gone_lend_their_place_in_memory_to_no_others() -> None:
    loaded = Resource("loaded", _name_of)
    found = Resources()
    # Nobody keeps these options, so one may lie where the one before it lay.
    names = [found.of(loaded, Named(f"{number}")) for number in range(50)]
    assert names == [f"{number}" for number in range(50)]


def _name_of(chosen: Named = settings(Named)) -> str:
    return chosen.name


def test_call_passes_resources_and_options_and_leaves_the_rest_to_the_caller() -> None:
    def work(
        count: int = read(COUNT), size: int = given(SIZE), chosen: Named = settings(Named)
    ) -> tuple[int, int, str]:
        return count, size, chosen.name

    call = Resources({SIZE: 3}).call(work, Named("a"))
    assert call(count=5) == (5, 3, "a")
    assert Resources().call(len) is len


def test_two_resources_of_a_name_and_one_made_from_itself_are_refused() -> None:
    first: Resource[int] = Resource("size")
    found = Resources({first: 3})
    assert found.of(first) == 3
    with pytest.raises(GraphError, match="two resources are called 'size'"):
        found.of(Resource("size", lambda: 4))

    def make(again: int = 0) -> int:
        return again + 1

    itself: Resource[int] = Resource("itself", make)
    make.__defaults__ = (given(itself),)
    with pytest.raises(GraphError, match="made from itself: itself → itself"):
        Resources().of(itself)
