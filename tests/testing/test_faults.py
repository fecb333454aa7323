"""What goes wrong in one request or one step stays there: the engine goes on for all others."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest

from stepweave.executors.errors import NodeFailure, StuckWait, UndeclaredAccess
from stepweave.executors.report import RunReport
from stepweave.executors.run_arguments import RunArguments
from stepweave.executors.serial import run_serial
from stepweave.graph.node import OpContext, Run
from stepweave.graph.plan import Plan
from stepweave.nodes.data import DraftTable
from stepweave.requests.increment import Increment
from stepweave.requests.request import Request, SamplingParams
from stepweave.serving.engine import Engine
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import (
    EOS,
    VOCAB,
    TinyConfig,
    fitted,
    serve,
    tiny_engine,
    tiny_request,
    tiny_requests,
)
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.faults import Changing, FaultyGrammar, InjectedFault, with_faults
from stepweave.testing.simulation import simulate_faults

SUITE, NIGHTLY, CHUNK = 6, 10_000, 6
REGEX = GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"})
PLAIN = [SamplingParams(max_tokens=n) for n in (9, 7, 11)]


@cache
def without_faults(config: TinyConfig, *params: SamplingParams) -> list[list[int]]:
    """What requests come to where nothing fails."""
    return serve(tiny_engine(config), tiny_requests(params))


@pytest.mark.parametrize("first", range(0, SUITE, CHUNK))
def test_whatever_fails_hits_only_whom_it_concerns(first: int) -> None:
    ends: Counter[str] = Counter()
    failures = untouched = 0
    for seed in range(first, first + CHUNK):
        report = simulate_faults(seed)
        ends += report.reasons
        failures += report.failures
        untouched += report.untouched
    # The seeds are no use if nothing happens in them.
    assert failures >= CHUNK // 4
    assert untouched >= CHUNK
    assert ends["error"] >= CHUNK // 4


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_ten_thousand_runs_under_faults() -> None:
    first = int(os.environ.get("STEPWEAVE_FIRST_SEED", SUITE))
    for seed in range(first, first + NIGHTLY):
        simulate_faults(seed)


def test_a_simulation_is_a_function_of_its_seed() -> None:
    seeds = (3, 11)
    assert [simulate_faults(seed) for seed in seeds] == [simulate_faults(seed) for seed in seeds]


# -- failing steps ----------------------------------------------------------------------------


class Failing:
    """Raises at chosen calls of one op; `error` makes what is raised."""

    def __init__(
        self,
        op: str,
        calls: Callable[[int], bool],
        *,
        after: bool = False,
        error: Callable[[], BaseException] = lambda: InjectedFault("on purpose\nand a trace"),
    ) -> None:
        self.op, self.due, self.after, self.error = op, calls, after, error
        self.calls = 0

    def __call__(self, name: str, ctx: OpContext, run: Run) -> None:
        self.calls += name == self.op
        due = name == self.op and self.due(self.calls)
        if due and not self.after:
            raise self.error()
        run(ctx)
        if due:
            raise self.error()


def broken(config: TinyConfig, failing: Failing) -> Engine:
    engine = tiny_engine(config)
    engine.plan = with_faults(engine.plan, failing)
    return engine


def ops(config: TinyConfig) -> list[str]:
    return list(tiny_engine(config).plan.graph.vertices)


EVERY_OP = TinyConfig(depth=2, draft_tokens=2, structured=True, padded=False, max_rows=2)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("op", ops(EVERY_OP))
def test_a_failing_op_ends_the_requests_of_its_step_and_no_other(op: str, executor: str) -> None:
    config = replace(EVERY_OP, executor=executor)
    params = [*PLAIN, SamplingParams(max_tokens=8, structured_outputs=REGEX)]
    plain = without_faults(EVERY_OP, *params)
    engine = broken(config, Failing(op, lambda call: call == 4, after=op == "commit.host.advance"))
    requests = tiny_requests(params)
    threads = threading.active_count()
    tokens = serve(engine, requests)
    assert threading.active_count() == threads
    assert engine.totals.failed_steps == 1
    hit = [request.uid for request in requests if request.finish_reason == "error"]
    assert len(hit) <= 2, "more than there are rows in a step"
    node = op.split(".")[0]
    for uid in hit:
        said = requests[uid].error or ""
        assert said.startswith(f"node {node!r}: op {op!r} failed in step ")
        assert re.search(r": InjectedFault: on purpose \(test_faults\.py:\d+, in __call__\)$", said)
        assert tokens[uid] == plain[uid][: len(tokens[uid])]
    if op == "schedule.host":
        assert not hit, "nobody was in that step yet"
    for uid in {*range(4)} - {*hit}:
        assert tokens[uid] == plain[uid]


@pytest.mark.parametrize("executor", ["serial", "threads", Interleaved(4)])
@pytest.mark.parametrize("op", ["schedule.host", "forward.device", "commit.host.finish"])
def test_what_fails_at_every_step_ends_everybody(op: str, executor: object) -> None:
    engine = broken(TinyConfig(depth=2), Failing(op, lambda call: True))
    engine.executor = executor  # type: ignore[assignment]
    requests = tiny_requests([SamplingParams(max_tokens=5)] * 9)
    serve(engine, requests)
    assert {request.finish_reason for request in requests} == {"error"}
    assert all(op in (request.error or "") for request in requests)
    assert engine.totals.failed_steps <= 9 + 1


@pytest.mark.parametrize(("times", "reason"), [(2, "length"), (1000, "error")])
def test_memory_that_cannot_be_had_ends_everybody_unless_it_comes_back(
    times: int, reason: str
) -> None:
    asked: list[str] = []

    def no_memory(name: str) -> None:
        if name == "staging" and len(asked) < times:
            asked.append(name)
            raise MemoryError("out of memory")

    engine = tiny_engine(TinyConfig(depth=2))
    engine.plan = with_faults(engine.plan, lambda name, ctx, run: run(ctx), no_memory)
    requests = tiny_requests(PLAIN)
    serve(engine, requests)
    assert {request.finish_reason for request in requests} == {reason}
    assert len(asked) == min(times, 4)
    if reason == "error":
        said = {request.error for request in requests}
        assert said == {"no step could begin: MemoryError: out of memory"}


def test_a_run_that_fails_between_its_ops_is_not_said_to_lack_memory() -> None:
    def ends_early(plan: Plan, given: RunArguments) -> RunReport:
        run_serial(plan, replace(given, steps=1))
        raise RuntimeError("lost")

    engine = tiny_engine(TinyConfig(depth=2))
    engine.executor = ends_early
    requests = tiny_requests(PLAIN)
    serve(engine, requests)
    errors = {request.error for request in requests}
    assert errors == {"the run ended between its ops: RuntimeError: lost"}


def test_a_wrong_declaration_and_an_interrupt_are_not_recovered_from() -> None:
    errors: list[tuple[BaseException, type[BaseException]]] = [
        (UndeclaredAccess("reads what it does not declare"), NodeFailure),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ]
    for error, raised in errors:
        failing = Failing("forward.device", (2).__eq__, error=partial(_itself, error))
        with pytest.raises(raised):
            serve(broken(TinyConfig(), failing), tiny_requests(PLAIN))


def _itself(error: BaseException) -> BaseException:
    return error


def test_a_node_that_hangs_ends_the_run() -> None:
    """It may still write what a next run would read, so there is none."""
    go_on = threading.Event()

    def hanging(name: str, ctx: OpContext, run: Run) -> None:
        if name == "sample.device" and ctx.step == 2:
            go_on.wait(30)
        run(ctx)

    engine = tiny_engine(TinyConfig(depth=2, executor="threads"))
    engine.watchdog_s = 0.4
    engine.plan = with_faults(engine.plan, hanging)
    with pytest.raises(StuckWait, match=r"runs 'sample\.device' of step 2"):
        serve(engine, tiny_requests(PLAIN))
    go_on.set()


def test_text_is_streamed_once_though_its_step_failed_half_way() -> None:
    """`advance` has taken the tokens in, `finish` never came: they are computed again."""
    plain = tiny_requests([SamplingParams(max_tokens=12, logprobs=1)] * 3)
    serve(tiny_engine(TinyConfig(depth=2)), plain)
    recovered = 0
    for op in ("sample.device", "commit.host.finish"):
        for seed, call in enumerate(range(2, 9, 2)):
            engine = broken(TinyConfig(depth=2, max_rows=2), Failing(op, call.__eq__))
            engine.executor = Interleaved(seed)
            requests = tiny_requests([SamplingParams(max_tokens=12, logprobs=1)] * 3)
            shown: dict[int, str] = {request.uid: "" for request in requests}
            for request in requests:
                request.deliver = _appending(shown, request.uid)
            serve(engine, requests)
            for request, alone in zip(requests, plain, strict=True):
                assert shown[request.uid] == request.text
                assert alone.text.startswith(request.text)
                count = request.stopper.count
                assert count == len(request.output_ids) == len(request.logprobs)
                if request.finish_reason != "error":
                    assert (request.text, request.output_ids) == (alone.text, alone.output_ids)
                    recovered += 1
    assert recovered > 7


def _appending(shown: dict[int, str], uid: int) -> Callable[[Increment], None]:
    def deliver(increment: Increment) -> None:
        shown[uid] += increment.text

    return deliver


def test_nothing_of_the_prefix_cache_outlives_a_failure() -> None:
    """What a drafter still had to write in an abandoned step would be missing there."""
    config = TinyConfig(prefix_cache=True, draft_tokens=2, depth=2)
    prompt = list(range(20, 40))

    def hits(failing: Failing) -> int:
        engine = broken(config, failing)
        table = engine.new_table()
        for uid in range(3):
            request = fitted(engine, tiny_request(uid, prompt, SamplingParams(max_tokens=3)))
            table.submit(request)
            engine.run(table)
        return table.prefix_hits

    assert hits(Failing("draft.device", lambda call: False)) == 2 * 16
    # The second request fails after it has found the first one's blocks; the third finds none.
    first = Failing("draft.device", lambda call: False)
    engine = broken(config, first)
    serve(engine, [tiny_request(0, prompt, SamplingParams(max_tokens=3))])
    assert hits(Failing("draft.device", lambda call: call == first.calls + 1)) == 16


def test_a_table_that_stays_open_is_served_on_after_a_failure() -> None:
    engine = broken(TinyConfig(depth=2, executor="threads"), Failing("sample.device", (2).__eq__))
    requests = [fitted(engine, request) for request in tiny_requests(PLAIN)]
    table = engine.new_table()
    table.open()
    table.submit(requests[0])

    def submit_later() -> None:
        while requests[0].phase != "done":
            pass
        table.submit_all(requests[1:])
        table.close()

    later = threading.Thread(target=submit_later)
    later.start()
    engine.run(table)
    later.join()
    assert [request.finish_reason for request in requests] == ["error", "length", "length"]
    assert engine.totals.failed_steps == 1


def test_who_arrives_between_failures_is_not_taken_for_one_who_got_nowhere() -> None:
    """Each of four failures in a row ends a newcomer; the fifth request waited meanwhile."""
    engine = tiny_engine(TinyConfig(max_rows=1))
    failing = Failing("forward.device", lambda call: call <= 4)
    requests = [fitted(engine, request) for request in tiny_requests([PLAIN[0]] * 5)]
    left = [requests[:1], requests[1:2], requests[2:3], requests[3:]]
    table = engine.new_table()
    table.open()

    def arriving(name: str, ctx: OpContext, run: Run) -> None:
        if name == "schedule.host" and left and not table.requests:
            table.submit_all(left.pop(0))
            if not left:
                table.close()
        failing(name, ctx, run)

    engine.plan = with_faults(engine.plan, arriving)
    engine.run(table)
    assert [request.finish_reason for request in requests] == ["error"] * 4 + ["length"]


# -- grammars ---------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["matcher", "fill", "advance"])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_grammar_that_raises_ends_its_own_request(kind: str, executor: str) -> None:
    config = TinyConfig(depth=2, draft_tokens=2, structured=True, executor=executor)
    params = [SamplingParams(max_tokens=9, structured_outputs=REGEX)] * 3
    plain = serve(tiny_engine(config), tiny_requests(params))
    requests = tiny_requests(params)
    grammar = requests[1].grammar
    assert grammar is not None
    requests[1].grammar = FaultyGrammar(grammar, {kind: 1 if kind == "matcher" else 2})
    engine = tiny_engine(config)
    tokens = serve(engine, requests)
    assert engine.totals.failed_steps == 0, "no step failed: the error stayed in its request"
    assert requests[1].finish_reason == "error"
    assert f"the grammar's {kind} failed on purpose" in (requests[1].error or "")
    assert (tokens[0], tokens[2]) == (plain[0], plain[2])


def drafting(tokens_of: Callable[[], Sequence[int]]) -> Callable[[str, OpContext, Run], None]:
    """Makes the drafter offer every row the same drafts."""

    def around(name: str, ctx: OpContext, run: Run) -> None:
        if name != "draft.device":
            run(ctx)
            return

        def offered(table: DraftTable) -> DraftTable:
            tokens = table.tokens.clone()
            for place, token in enumerate(tokens_of()):
                tokens[:, place] = token
            return DraftTable(tokens, table.tags)

        run(Changing(ctx, {"drafts": offered}))

    return around


@pytest.mark.parametrize("drafts", [(-1, 5, 6), (VOCAB, 1 << 40, -9), (5, -1, 7)])
@pytest.mark.parametrize("structured", [False, True])
def test_drafts_that_are_no_tokens_count_as_none(drafts: tuple[int, ...], structured: bool) -> None:
    config = TinyConfig(depth=2, draft_tokens=3, structured=structured)
    grammar = REGEX if structured else None
    params = [SamplingParams(max_tokens=9, structured_outputs=each) for each in (grammar, None)]
    plain = without_faults(config, *params)
    engine = tiny_engine(config)
    engine.plan = with_faults(engine.plan, drafting(lambda: drafts))
    requests = tiny_requests(params)
    assert serve(engine, requests) == plain
    assert engine.totals.failed_steps == 0
    if drafts[0] != 5:
        assert all(request.drafted == 0 for request in requests)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_an_end_token_inside_an_accepted_draft_ends_the_request_there(executor: str) -> None:
    """The matcher has finished in the middle of the window and is asked for one mask more."""
    grammar = GrammarSpec.from_request({"regex": "ab"})
    config = TinyConfig(depth=2, draft_tokens=3, structured=True, executor=executor)
    [plain] = serve(tiny_engine(config), [tiny_request(0, [40, 41], params(grammar))])
    assert plain[-1] == EOS
    for ignore_eos in (False, True):
        engine = tiny_engine(config)
        # After the first token everything that is left, the end, and the end again.
        rest = [*plain[1:], EOS, EOS, EOS][:3]
        engine.plan = with_faults(engine.plan, drafting(lambda rest=rest: rest))  # type: ignore[misc]
        request = tiny_request(0, [40, 41], params(grammar, ignore_eos=ignore_eos))
        [tokens] = serve(engine, [request])
        assert request.error is None
        assert tokens[: len(plain)] == plain
        assert set(tokens[len(plain) :]) <= {EOS}
        assert request.finish_reason == ("length" if ignore_eos else "stop")
        assert request.accepted >= 1


def params(grammar: GrammarSpec, *, ignore_eos: bool = False) -> SamplingParams:
    return SamplingParams(max_tokens=8, structured_outputs=grammar, ignore_eos=ignore_eos)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
def test_a_chunk_without_a_sample_leaves_the_matcher_alone(method: str) -> None:
    """Prompts in chunks, beside rows that decode under grammars with drafts."""
    config = TinyConfig(depth=2, draft_tokens=2, structured=True, method=method)  # type: ignore[arg-type]
    params = [SamplingParams(max_tokens=9, structured_outputs=REGEX)] * 4

    def requests() -> list[Request]:
        return tiny_requests(params, longest=60)

    plain = serve(tiny_engine(config), requests())
    for seed, budget in enumerate((6, 13)):
        engine = tiny_engine(replace(config, token_budget=budget))
        engine.executor = Interleaved(seed)
        served = requests()
        assert serve(engine, served) == plain
        assert all(request.error is None for request in served)


def test_a_request_left_over_by_one_run_keeps_its_grammar_in_the_next() -> None:
    """Its matcher is another, and stands behind what was settled."""
    config = TinyConfig(structured=True, draft_tokens=2)
    long = [SamplingParams(max_tokens=12, structured_outputs=REGEX)]
    [plain] = serve(tiny_engine(config), tiny_requests(long))
    assert len(plain) > 4
    fatal = Failing("forward.device", (4).__eq__, error=lambda: UndeclaredAccess("wrong"))
    engine = broken(config, fatal)
    [request] = tiny_requests(long)
    table = engine.new_table()
    table.submit(fitted(engine, request))
    with pytest.raises(NodeFailure):
        engine.run(table)
    assert 0 < len(request.output_ids) < len(plain)
    engine.run(table)
    assert request.output_ids == plain
