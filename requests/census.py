"""Who is in which phase: found in one pass over all requests, and good until a phase changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..policies.preemption import RunningView
from ..policies.scheduling import RowView
from .request import Request


@dataclass(slots=True)
class Census:
    """All requests that have not ended, in the order of the table.

    Thousands may wait while a few run, and a step must not look at each of them several times. Of
    those that never ran there is the view that policies get, since nothing of it changes.
    """

    running: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    waiting: list[RowView] = field(default_factory=list)

    @classmethod
    def of(cls, requests: Iterable[Request]) -> Census:
        census = cls()
        for request in requests:
            if request.phase == "running":
                census.running.append(request)
            elif request.phase == "preempted":
                census.preempted.append(request)
            else:
                census.waiting.append(prompt_view(request))
        return census

    def prompts(self) -> list[RowView]:
        """A view of everybody who has a prompt to compute."""
        views = self.waiting.copy()
        views += [prompt_view(each) for each in self.preempted]
        views += [
            prompt_view(each) for each in self.running if each.prefilled < each.prefill_target
        ]
        return views

    def better_than(self, priority: int) -> list[RowView]:
        """A view of everybody who does not run, but has a better priority."""
        views = [view for view in self.waiting if view.priority < priority]
        views += [prompt_view(each) for each in self.preempted if each.params.priority < priority]
        return views


def prompt_view(request: Request) -> RowView:
    running = request.phase == "running"
    return RowView(
        request.params.priority,
        request.uid,
        request.turn,
        request.prefill_target - request.prefilled if running else request.settled,
        decodes=False,
        running=running,
        in_flight=request.in_flight.steps,
    )


def window_view(request: Request) -> RowView:
    return RowView(
        request.params.priority,
        request.uid,
        request.turn,
        request.next_window,
        decodes=True,
        running=True,
        in_flight=request.in_flight.steps,
    )


def running_view(request: Request) -> RunningView:
    return RunningView(request.params.priority, request.uid, request.settled, len(request.blocks))
