"""Which requests are in a step, with how many tokens each, and who gives way to whom.

First whoever waits is admitted in place of those of a worse priority. Then rows decode, and what
they leave of the token budget goes to prompts. Policies decide in which order, and about shares.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from ..policies.drafting import DraftView
from .batch import ScheduledRow
from .census import running_view, window_view
from .request import Request

if TYPE_CHECKING:
    from .table import RequestTable

UNSEEN = 3
"""Windows before the next one that no policy sees: at depth 3 they are not settled yet.

So what a policy makes of a row's own windows is the same at every depth that has no more steps in
flight.
"""

"""For each pair of kinds of steps, by what share they may be off against each other."""


class StepRows:
    """The rows of one step of a request table. `now`: the number of the step over all runs.

    `drafts`: the most that a row has in this step, and is offered for its next window; None: any
    number. Other plans of the engine may have more, or fewer.
    """

    def __init__(self, table: RequestTable, now: int, drafts: int | None = None) -> None:
        self._table, self._now, self._drafts = table, now, drafts
        self._requests, self._limits = table.requests, table.limits
        self._blocks, self._decisions = table.blocks, table.decisions
        self._rows: list[ScheduledRow] = []
        self._withheld_from_all: dict[int, int] = {}  # by the most drafts that a row may have

    def chosen(self) -> list[ScheduledRow]:
        """Choose the rows, and grant them memory. Raises `PolicyError`."""
        if self._drafts is not None and self._drafts < self._limits.draft_tokens:
            for request in self._table.phases.running:  # who sits out finds no drafts later either
                request.withheld = max(request.withheld, self._too_many(request))
        promised = self._make_room()
        self._prefills(self._decodes(promised))
        return self._rows

    def _make_room(self) -> int | None:
        """Admit those that wait while requests of a worse priority run, in place of these.

        Before any row is chosen, since a row that is in the batch cannot be preempted. The
        result, if any, is the priority of a request whose room is released but still rests:
        until it is admitted, none of a worse priority is granted blocks.
        """
        running = self._table.phases.running
        if not running:
            return None
        worst = max(request.params.priority for request in running)
        better = self._table.phases.better_than(worst)
        for view in self._decisions.order(better) if better else ():
            request = self._requests[view.uid]
            if request.in_flight.steps:
                return None
            if self._blocks.awaits_prompt(request):
                continue
            if self._table.admit(request, self._now):
                continue
            victims = self._victims_for(request)
            if victims is None:
                return None
            for each in victims:
                self._table.give_way(each)
            if not self._table.admit(request, self._now):
                return view.priority
        return None

    def _victims_for(self, request: Request) -> list[Request] | None:
        """As few as the policy names until there is room for `request`; None if that is in vain."""
        priority = request.params.priority
        worse = [
            running_view(r) for r in self._table.phases.running if r.params.priority > priority
        ]
        victims: list[Request] = []
        while not self._table.fits_without(request, victims, self._now):
            if not worse:
                return None
            uid = self._decisions.victim(worse)
            worse = [view for view in worse if view.uid != uid]
            victims.append(self._requests[uid])
        return victims

    def _decodes(self, promised: int | None) -> int:
        """Choose the rows that decode; the result is what they leave of the token budget."""
        ready: dict[int, Request] = {}
        prompts, widest = len(self._requests), 0
        contexts = self._limits.context_of(long=False), self._limits.context_of(long=True)
        for request in self._table.phases.running:
            if request.prefilled < request.prefill_target:
                continue
            prompts -= 1
            if not request.certain_to_end(contexts[request.long]):
                ready[request.uid] = request
                if request.next_window > widest:
                    widest = request.next_window
        budget = self._limits.token_budget
        left = share = self._decisions.share(budget, widest, prompts)
        chosen: set[int] = set()
        views = [window_view(each) for each in ready.values()]
        for view in self._decisions.order(views) if views else ():
            found = ready.pop(view.uid, None)
            request = found or self._decisions.not_offered(view)
            if left < 1:
                break
            tokens = self._decisions.offer(view, left)
            window = request.next_window
            if (tokens != window or tokens > left) and not self._decisions.checked(
                view, tokens, left, window
            ):
                break
            if request.phase != "running":  # preempted for a row before it
                continue
            if self._now - request.last_step < self._table.apart:
                self._decisions.too_soon(view, self._table.apart)
            if not self._reserve_window(request, promised, chosen):
                self._table.has_turn(request, runs=False)
                self._decisions.no_memory()
                continue
            self._row(request)
            request.in_flight.windows += 1
            request.in_flight.drafts += window - 1
            chosen.add(request.uid)
            left -= window
        return budget - share + left

    def _prefills(self, left: int) -> None:
        if left < 1:
            return
        wanting = self._table.phases.prompts()
        seen: set[int] = set()
        blocked = False
        room = self._limits.context_length  # for prefixes: they share one staging buffer
        for view in self._decisions.order(wanting) if wanting else ():
            if left < 1:
                break
            known = None if view.uid in seen else self._requests.get(view.uid)
            request = known or self._decisions.not_offered(view)
            seen.add(view.uid)
            if request.phase == "running" and request.prefilled >= request.prefill_target:
                self._decisions.not_offered(view)
            tokens = self._decisions.offer(view, left)
            most = self._decisions.checked(view, tokens, left, view.tokens)
            if not most:
                break
            if request.phase != "running" and self._blocks.awaits_prompt(request):
                continue  # another is computing what it will share
            if request.phase != "running" and (
                blocked or request.in_flight.steps or not self._table.admit(request, self._now)
            ):
                blocked = True  # nobody overtakes; but those that run go on, or none would end
                self._decisions.no_memory()
                continue
            if self._blocks.swap.is_awaited(request.uid, self._now):
                self._table.has_turn(request, runs=False)
                continue  # its blocks are still being filled
            reach = self._table.encodings.reach(request, self._now)
            if request.prefilled >= reach:
                self._table.has_turn(request, runs=False)
                continue  # what stands for its next tokens is still being encoded
            prefix = self._blocks.pending_prefix(request)
            if prefix > room:
                blocked = True
                continue
            room -= prefix
            left -= self._chunk(request, min(most, reach - request.prefilled))

    def _chunk(self, request: Request, most: int) -> int:
        """Compute the next tokens of a prompt, `most` at most; the result is how many."""
        start = request.prefilled
        end = min(request.prefill_target, start + most)
        final = end == request.prefill_target
        forced = request.output_ids[-1] if final and request.resumes else -1
        self._row(
            request,
            start=start,
            tokens=tuple(request.token(position) for position in range(start, end)),
            samples=final,
            forced=forced,
            following=request.token(end) if end < request.settled else -1,
            prefix=tuple(
                request.token(position) for position in range(self._blocks.pending_prefix(request))
            ),
            prompt_targets=request.prompt_targets(start, end - start),
            encoded=tuple(self._table.encodings.runs(request, start, end)),
        )
        self._blocks.named_prefix(request)
        request.prefilled = end
        self._table.encodings.passed(request, self._now)
        if final and forced < 0:
            request.in_flight.firsts += 1
        else:
            request.in_flight.silent += 1
        return end - start

    def _row(
        self,
        request: Request,
        *,
        start: int = -1,
        tokens: tuple[int, ...] = (),
        samples: bool = True,
        forced: int = -1,
        following: int = -1,
        prefix: tuple[int, ...] = (),
        prompt_targets: tuple[int, ...] = (),
        encoded: tuple[tuple[int, int, int], ...] = (),
    ) -> None:
        request.last_step = self._now
        narrowed = request.withheld if start < 0 else 0
        if samples and request.speculates:
            withheld = self._withheld(request, decodes=start < 0)
            request.withheld = max(withheld, self._too_many(request))
        if request.moments.scheduled_s is None:
            request.moments.scheduled_s = perf_counter()
        self._table.has_turn(request)
        window, end = request.window - narrowed, start + len(tokens)
        most = request.upper_bound() + window if start < 0 else end + 1
        blocks, known, passed = self._blocks.next_table(request)
        row = ScheduledRow(
            request=request.spec,
            request_slot=request.request_slot,
            generation=request.generation,
            blocks=blocks,
            start=start,
            tokens=tokens,
            samples=samples,
            forced=forced,
            following=following,
            prefix=prefix,
            limit=self._limits.context_of(long=request.long),
            most=most,
            too_short=request.too_short,
            earlier_output=request.earlier_output if request.spec.structured else (),
            prompt_targets=prompt_targets,
            known=known,
            passed=passed,
            narrowed=narrowed,
            withheld=request.withheld,
            encoded=encoded,
        )
        self._rows.append(row)

    def _too_many(self, request: Request) -> int:
        """How many of its most drafts are more than this step has for a row."""
        return 0 if self._drafts is None else max(0, request.window - 1 - self._drafts)

    def _withheld(self, request: Request, *, decodes: bool) -> int:
        """How many drafts fewer than the most it is offered for the window after this row."""
        most, running = request.window - 1, len(self._table.phases.running)
        if self._decisions.by_row:
            number = len(request.windows) + request.in_flight.windows + decodes
            seen = max(0, min(len(request.windows), number - UNSEEN))
            own = request.windows[max(0, seen - self._decisions.past_windows) : seen]
            return self._decisions.withheld(DraftView(most, running, own, (), seen))
        if most not in self._withheld_from_all:
            times, settled = self._table.step_times, self._table.windows
            usual = times.usual(running)
            last, stays, before = times.offered(running)
            view = DraftView(
                most=most,
                rows=running,
                own=(),
                settled=settled,
                took_us=times.of(usual),
                came=times.came(running),
                last=last,
                stays=stays,
                before=before,
                usual=usual,
                gained=self._table.gains.now(),
                took_unsure=times.unsure(usual),
                gained_unsure=self._table.gains.unsure(),
            )
            self._withheld_from_all[most] = self._decisions.withheld(view)
        return self._withheld_from_all[most]

    def _reserve_window(self, request: Request, promised: int | None, chosen: set[int]) -> bool:
        """Blocks for one more window, preempting worse requests if need be.

        Where it is itself the worst, it sits the step out: nobody else is short of blocks then.
        """
        need = self._blocks.missing(request)
        if need > 0 and promised is not None and request.params.priority > promised:
            return False
        while need > 0 and not self._blocks.extend(request, need, self._now):
            if len(self._blocks.swap.leaving) >= need:
                return False  # there is room as soon as these are copied out
            priority = request.params.priority
            other = self._decisions.victim(
                [
                    running_view(each)
                    for each in self._table.phases.running
                    if each.uid not in chosen and each.params.priority >= priority
                ]
            )
            if other == request.uid:
                return False
            self._table.give_way(self._requests[other])
        return True
