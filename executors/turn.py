"""How a concurrent run goes from one leg to the next: what each host thread runs in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from ..graph.plan import Wait
from ..graph.planner.segments import Segment
from ..graph.switch import Instance, Switch
from .frontier import Frontier
from .interrupted import interrupted
from .leg import Leg, Once, Tokens

Script = list[tuple[Callable[[int], None], int]]  # what to call, with which step


@dataclass(frozen=True)
class Turn:
    """The next leg, and by host thread what it runs until that leg's own loop begins."""

    leg: Leg
    enters: int  # the iteration with which that loop begins
    scripts: Mapping[str, Script]
    tokens: tuple[Tokens, ...]  # of the waits that take place once

    @property
    def frontier(self) -> Frontier:
        """Of the next leg."""
        return self.leg.frontier

    @staticmethod
    def of(switch: Switch, step: int, before: Leg, after: Leg) -> Turn:
        """The turn to `after`, which begins with this step."""
        once: dict[Instance, Once] = {}
        queues: list[Tokens] = []
        legs = (before, after)
        for wait in switch.waits:
            tokens: Tokens = SimpleQueue()
            queues.append(tokens)
            source, target = wait.source, wait.target
            event = _launch(legs, source) is not None
            plain = Wait(source.op, target.op, target.step - source.step)
            gives = once.setdefault(_launch(legs, source) or source, Once())
            gives.puts.setdefault(source.op, []).append(tokens.put)
            takes = once.setdefault(_launch(legs, target) or target, Once())
            takes.takes.setdefault(target.op, []).append((plain, tokens, event))
        for part, leg in enumerate(legs):
            if leg.captures is not None:
                for segment in leg.captures.segments:
                    alone = _interrupted(switch, part, leg, segment, once)
                    leg.captures.interrupt(segment, {step + each for each in alone})
        hosts = dict.fromkeys([*before.program.hosts, *after.program.hosts])
        scripts = {
            actor: _script(switch.programs.get(actor, ()), step, legs, once, actor)
            for actor in hosts
        }
        return Turn(after, step + switch.enters, scripts, tuple(queues))


def _launch(legs: tuple[Leg, Leg], at: Instance) -> Instance | None:
    """What launches it, if it is a device op."""
    launch = legs[at.part].contexts[at.op].vertex.launch
    return None if launch is None else Instance(at.part, launch, at.step)


def _interrupted(
    switch: Switch, part: int, leg: Leg, segment: Segment, once: Mapping[Instance, Once]
) -> set[int]:
    """Steps in which something of the switch comes between the ops of a segment, or between their
    launches: what is handed over as one would come before it."""
    launches = [*dict.fromkeys(leg.contexts[op].vertex.launch or op for op in segment.ops)]
    programs = switch.programs
    return (
        interrupted(programs.get(segment.stream, ()), part, segment.ops)
        | interrupted(programs.get(leg.actor_of[launches[0]], ()), part, launches)
        | {at.step for at in once if at.part == part and at.op in launches}
    )


def _script(
    ops: tuple[Instance, ...],
    step: int,
    legs: tuple[Leg, Leg],
    once: Mapping[Instance, Once],
    actor: str,
) -> Script:
    """The ops of both plans in turn; after the last of the plan before, what it owes to others."""
    script: Script = []
    last = max((place for place, at in enumerate(ops) if at.part == 0), default=-1)
    for place, at in enumerate(ops):
        leg = legs[at.part]
        perform = leg.performs[at.op]
        if at in once:
            perform = leg.perform(leg.tasks[at.op], once[at])
        script.append((perform, step + at.step))
        if place == last:
            script.append((lambda _: legs[0].pay(actor), step))
    if last < 0:
        script.insert(0, (lambda _: legs[0].pay(actor), step))
    return script
