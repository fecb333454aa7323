"""Faults on purpose: a plan whose ops fail when a test says so.

`around` is asked for every op of every step and runs it as it likes: it may raise before or after,
hand the op another context, or look at what it did. So a test of your own node can show what the
engine makes of its failure; `stepweave.testing.simulation` draws whole runs full of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph import arguments
from ..graph.node import Op, OpContext, Run
from ..graph.plan import Plan
from ..graph.step_graph import Vertex
from ..requests.request import TextStream
from ..structured.backend import CompiledGrammar, GrammarAround, Matcher
from ..structured.bitmask import Words
from .forwarding import Forwarding


class InjectedFault(RuntimeError):
    """What a fault on purpose raises."""


Around = Callable[[str, OpContext, Run], None]
"""Runs one op of one step: (its name, its context, its own run)."""

Allocating = Callable[[str], None]
"""Called before a buffer of the value of that name is allocated; may raise."""


def with_faults(plan: Plan, around: Around, allocating: Allocating | None = None) -> Plan:
    """The same plan, with its ops run through `around`. Orders, waits and slots are kept.

    Raises `GraphError` if `plan` is not a plan.
    """
    arguments.a("with_faults", "plan", plan, Plan, arguments.A_PLAN)

    def wrapped(vertex: Vertex) -> Op:
        run = vertex.op.run or _nothing

        def asked(ctx: OpContext) -> None:
            _ = ctx.step  # what looks at its step is never replayed: `around` is asked in each
            around(vertex.name, ctx, run)

        return replace(vertex.op, run=asked)

    graph = plan.graph
    values = dict(graph.values)
    for name, value in graph.values.items():
        if allocating is not None and value.allocate is not None:
            values[name] = replace(value, allocate=_guarded(name, value.allocate, allocating))
    return replace(plan, graph=replace(graph.with_ops(wrapped), values=values))


def _nothing(ctx: OpContext) -> None:
    """The run of an op that has none."""


def _guarded(name: str, allocate: Callable[[], Any], allocating: Allocating) -> Callable[[], Any]:
    def guarded() -> Any:
        allocating(name)
        return allocate()

    return guarded


class Changing(Forwarding):
    """A context in which some values are changed on their way: name -> what is written instead."""

    __slots__ = ("_changes",)

    def __init__(self, inner: OpContext, changes: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__(inner)
        self._changes = changes

    def write(self, name: str, datum: Any) -> None:
        change = self._changes.get(name)
        self._inner.write(name, datum if change is None else change(datum))


@dataclass
class FaultyDecoder:
    """A text stream that raises when the n-th tokens, from 1 on, are pushed into it."""

    inner: TextStream
    fails: int
    calls: int = 0

    def push(self, ids: Sequence[int]) -> str:
        """Raises `InjectedFault`."""
        self.calls += 1
        if self.calls == self.fails:
            raise InjectedFault("the decoder failed on purpose")
        return self.inner.push(ids)

    def finish(self) -> str:
        """What is held back."""
        return self.inner.finish()


@dataclass
class FaultyGrammar(GrammarAround):
    """A grammar whose matchers raise on their n-th call of a kind, counted over all of them.

    `fails` says which: "matcher" (when it is made), "fill" or "advance", from 1 on.
    """

    inner: CompiledGrammar
    fails: Mapping[str, int]
    calls: Counter[str] = field(init=False, default_factory=Counter)

    def matcher(self) -> Matcher:
        self.called("matcher")
        return _FaultyMatcher(self.inner.matcher(), self)

    def called(self, kind: str) -> None:
        """Count a call of that kind. Raises `InjectedFault` if it is the one."""
        self.calls[kind] += 1
        if self.calls[kind] == self.fails.get(kind):
            raise InjectedFault(f"the grammar's {kind} failed on purpose")


@dataclass
class _FaultyMatcher:
    inner: Matcher
    grammar: FaultyGrammar

    @property
    def terminated(self) -> bool:
        return self.inner.terminated

    @property
    def failed(self) -> bool:
        return self.inner.failed

    @property
    def closed_row(self) -> Words:
        return self.inner.closed_row

    def accept(self, token: int) -> bool:
        return self.inner.accept(token)

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)

    def advance(self, tokens: Sequence[int]) -> None:
        self.grammar.called("advance")
        self.inner.advance(tokens)

    def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
        self.grammar.called("fill")
        return self.inner.fill_window(drafts, rows)

    def fill_here(self, row: Words) -> bool:
        self.grammar.called("fill")
        return self.inner.fill_here(row)
