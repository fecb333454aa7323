"""Time to first token: the synchronous loop, the pipeline, and the pipeline just in time.

A request that arrives while a pipelined step is scheduled and another runs waits for both, unless
the schedule comes as late as it may (`policies.admission`). Requests arrive at random (Poisson), at
the same times for every side, at a share (*load*) of what the synchronous loop could serve. The
first token is there when the commit that settles it ends. *Gap*: time between a request's tokens.

Two parts. The simulated one runs the decode step's plans with assumed costs, where the device
takes most of the time; steps that also compute a prompt are longer, and all ops jitter. It is
exact and the same on every machine. With `--real` the embedded model runs: requests come from
another thread into a running engine, sides in turn, round by round, tokens compared. The first
rounds at each load are not counted: shapes of steps that have not come up yet are recorded in them.

    python -m benchmarks.ttft [--load 0.2 0.4 0.6 0.8] [--real] [--real-load 0.3 0.6]
        [--rounds 5] [--warm 8]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from stepweave import LLM
from stepweave.graph.answers.delay import delayable
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.models.tokenizer import StreamDecoder
from stepweave.policies.admission import Eager, JustInTime
from stepweave.requests.increment import Increment
from stepweave.requests.pacer import Pacer
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.stopping import StopChecker
from stepweave.requests.table import RequestTable
from stepweave.testing import decode_step
from stepweave.testing.models import save_tiny
from stepweave.timelines.simulated import Turn, simulate
from stepweave.timelines.timeline import Timeline
from training.corpus import examples, story

from .paired import Spread, at_least_one, cuts, own_process, save

SCHEDULE, COMMIT, FINISH = "schedule.host", "commit.host.advance", "commit.host.finish"
US = 1e-6
PROMPT = 128  # tokens of a simulated prompt


@dataclass(frozen=True)
class Side:
    """One of those compared."""

    name: str
    depth: int
    just_in_time: bool = False


SIDES = (
    Side("synchronous", 1),
    Side("depth 2, eager", 2),
    Side("depth 2, just in time", 2, True),
)


@dataclass(frozen=True)
class Latencies:
    """Times to first token, and between tokens, of the requests of one run, in µs."""

    mean: float
    median: float
    p90: float
    gap: float

    @staticmethod
    def of(first: Sequence[float], gaps: Sequence[float]) -> Latencies:
        if not first or not gaps:
            raise SystemExit("no request got two tokens: give a longer run, or more load")
        p90 = cuts(first, 10)[-1]
        return Latencies(
            statistics.fmean(first), statistics.median(first), p90, statistics.fmean(gaps)
        )

    def over(self, other: Latencies) -> dict[str, float]:
        """Each figure as a ratio to that of another run."""
        mine, its = asdict(self), asdict(other)
        return {name: mine[name] / its[name] for name in mine}


def poisson(rate: float, until: float, seed: int) -> list[float]:
    """Times of arrival before `until`."""
    rnd = random.Random(seed)
    times: list[float] = []
    now = rnd.expovariate(rate)
    while now < until:
        times.append(now)
        now += rnd.expovariate(rate)
    return times


# --- simulated ---


@dataclass
class SimulatedRequest:
    """A simulated request."""

    arrival_us: float
    tokens: int
    settled: int = 0
    in_flight: int = 0
    first_us: float = 0.0
    last_us: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Who is in a step, and how many of them compute their prompt in it."""

    requests: tuple[SimulatedRequest, ...]
    prompts: int

    @property
    def tokens(self) -> int:
        return len(self.requests) + (PROMPT - 1) * self.prompts


@dataclass
class World:
    """The decode step on the clock of a simulation: who is in which step, how long ops take."""

    plan: Plan
    arrivals: deque[SimulatedRequest]
    rows: int
    prompt_us: float  # what a step takes longer for each prompt in it
    pacer: Pacer = field(default_factory=lambda: Pacer(Eager()))
    now_s: float = 0.0
    running: list[SimulatedRequest] = field(default_factory=list)
    batches: dict[int, Batch] = field(default_factory=dict)

    def paced(self) -> World:
        """Just in time, by this clock."""
        assert delayable(self.plan, SCHEDULE, COMMIT)
        self.pacer = Pacer(JustInTime(), clock=lambda: self.now_s, sleep=self._sleep)
        return self

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def takes(self, turn: Turn) -> float:
        if turn.op == SCHEDULE:
            return self._schedule(turn) + turn.cost_us
        batch = self.batches[turn.step]
        if not batch.requests:
            return 0.0
        if turn.op == COMMIT:
            self.pacer.waited((turn.start_us - turn.free_us) * US)
        if turn.op == FINISH:
            self._settle(batch, turn.start_us + turn.cost_us)
        return turn.cost_us + self.prompt_us * batch.prompts * (turn.op == "forward.device")

    def _schedule(self, turn: Turn) -> float:
        """Choose the batch; how long it was put off."""
        self.now_s = turn.start_us * US
        before = self.batches.get(turn.step - 1)
        self.pacer.before_schedule(before.tokens if before else 0)
        now_us = self.now_s / US
        if not self.running and self.arrivals:
            now_us = max(now_us, self.arrivals[0].arrival_us)
        new = 0
        while self.arrivals and self.arrivals[0].arrival_us <= now_us:
            if len(self.running) == self.rows:
                break
            self.running.append(self.arrivals.popleft())
            new += 1
        batch = [r for r in self.running if r.settled + r.in_flight < r.tokens]
        for request in batch:
            request.in_flight += 1
        self.batches[turn.step] = Batch(tuple(batch), new)
        return now_us - turn.start_us

    def _settle(self, batch: Batch, now_us: float) -> None:
        for request in batch.requests:
            request.in_flight -= 1
            request.settled += 1
            request.first_us = request.first_us or now_us
            request.last_us = now_us
        self.running = [r for r in self.running if r.settled < r.tokens]


@dataclass(frozen=True)
class Model:
    """What is assumed of the simulated engine."""

    steps: int
    rows: int
    jitter: float
    prompt_us: float
    seed: int = 7

    def timeline(self, side: Side, requests: Sequence[SimulatedRequest]) -> Timeline:
        plan = compile_plan(decode_step(side.depth))
        world = World(plan, deque(requests), self.rows, self.prompt_us)
        if side.just_in_time:
            world.paced()
        takes = world.takes
        return simulate(plan, steps=self.steps, jitter=self.jitter, seed=self.seed, takes=takes)

    def requests(self, load: float) -> list[SimulatedRequest]:
        """Poisson arrivals at a share of what the synchronous loop can serve."""
        rnd = random.Random(self.seed)
        periods = [compile_plan(decode_step(side.depth)).period_us for side in SIDES]
        tokens = [rnd.randint(8, 40) for _ in range(self.steps)]
        rate = load * self.rows / statistics.fmean(tokens) / periods[0]
        arrivals = poisson(rate, 0.75 * self.steps * min(periods), self.seed)
        return [SimulatedRequest(at, count) for at, count in zip(arrivals, tokens, strict=False)]

    def latencies(self, side: Side, load: float) -> Latencies:
        requests = self.requests(load)
        self.timeline(side, requests)
        assert all(request.settled == request.tokens for request in requests)
        gaps = [(r.last_us - r.first_us) / (r.tokens - 1) for r in requests]
        return Latencies.of([r.first_us - r.arrival_us for r in requests], gaps)

    def period_us(self, side: Side) -> float:
        """The time per step when every row decodes all the time."""
        endless = [SimulatedRequest(0.0, 2 * self.steps) for _ in range(self.rows)]
        return self.timeline(side, endless).period_us


def simulate_sides(model: Model, loads: Sequence[float]) -> dict[str, Any]:
    """All sides at all loads, in µs and as ratios to the synchronous loop."""
    periods = {side.name: model.period_us(side) for side in SIDES}
    table = []
    for load in loads:
        found = {side.name: model.latencies(side, load) for side in SIDES}
        reference = found[SIDES[0].name]
        table += [
            {
                "load": load,
                "side": name,
                "us": asdict(latencies),
                "over_synchronous": latencies.over(reference),
            }
            for name, latencies in found.items()
        ]
    return {"assumed": asdict(model), "period_us": periods, "by_load": table}


# --- real ---


class Bench:
    """One engine for each side, on the embedded model or on a random one of some width."""

    def __init__(self, rows: int, tokens: int, model: Path | None) -> None:
        self.tokens = tokens
        self.sides: dict[str, LLM] = {}
        for side in SIDES:
            executor = "serial" if side.depth == 1 else "threads"
            settings = {
                "depth": side.depth,
                "executor": executor,
                "scheduler.max_rows": rows,
                "scheduler.prefix_cache": "false",
                "policies.admission": "just_in_time" if side.just_in_time else "eager",
            }
            if model is not None:
                settings |= {"model.invariant": "false", "scheduler.token_budget": 512}
            overrides = {k: str(v) for k, v in settings.items()}
            self.sides[side.name] = LLM(model, pipeline="async", overrides=overrides)
        told = islice(examples(1, {story: 1}), 64)
        self.prompts = [example.prompt for example in told]

    def request(self, llm: LLM, uid: int) -> Request:
        text = self.prompts[uid % len(self.prompts)]
        chat = [{"role": "user", "content": text}]
        prompt = llm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tuple(llm.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return Request(
            uid=uid,
            id=str(uid),
            prompt=text,
            prompt_ids=ids,
            params=SamplingParams(max_tokens=self.tokens, ignore_eos=True),
            max_tokens=self.tokens,
            stop_token_ids=frozenset(),
            stopper=StopChecker((), (), self.tokens),
            decoder=StreamDecoder(llm.tokenizer, ids),
        )

    def rate(self, rows: int) -> float:
        """Requests per second that the synchronous loop serves with all rows busy."""
        llm = self.sides[SIDES[0].name]
        table = llm.engine.new_table()
        requests = [self.request(llm, uid) for uid in range(2 * rows)]
        table.submit_all(requests)
        return len(requests) / llm.engine.run(table).seconds

    def run(self, side: Side, arrivals: Sequence[float]) -> tuple[Latencies, list[list[int]]]:
        """Submit at these seconds after the start, from another thread; latencies and tokens."""
        llm = self.sides[side.name]
        table = llm.engine.new_table()
        requests = [self.request(llm, uid) for uid in range(len(arrivals))]
        heard: dict[int, list[float]] = {request.uid: [] for request in requests}

        def settled(uid: int, increment: Increment) -> None:
            heard[uid] += [time.perf_counter()] * len(increment.token_ids)

        for request in requests:
            request.deliver = partial(settled, request.uid)
        sent = [0.0] * len(requests)
        table.open()
        feeder = threading.Thread(target=self._feed, args=(table, requests, arrivals, sent))
        feeder.start()
        llm.engine.run(table)
        feeder.join()
        assert all(request.error is None for request in requests)
        first = [(heard[uid][0] - at) * 1e6 for uid, at in enumerate(sent)]
        gaps = [(t[-1] - t[0]) * 1e6 / (self.tokens - 1) for t in heard.values()]
        return Latencies.of(first, gaps), [request.output_ids for request in requests]

    def _feed(
        self,
        table: RequestTable,
        requests: Sequence[Request],
        arrivals: Sequence[float],
        sent: list[float],
    ) -> None:
        began = time.perf_counter()
        try:
            for request, at in zip(requests, arrivals, strict=True):
                time.sleep(max(0.0, began + at - time.perf_counter()))
                sent[request.uid] = time.perf_counter()
                table.submit(request)
        finally:
            table.close()


def random_model(folder: Path, width: int) -> Path:
    """Four layers whose matrices, not their number, take the time of a step."""
    return save_tiny(
        folder,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=4,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        max_position_embeddings=1024,
    )


def measure_sides(
    loads: Sequence[float],
    rows: int,
    tokens: int,
    seconds: float,
    rounds: int,
    warm: int,
    model: Path | None = None,
) -> dict[str, Any]:
    """Rounds of all sides in turn, the same arrivals for each; spreads of the paired ratios.

    Before them `warm` rounds that are not counted.
    """
    bench = Bench(rows, tokens, model)
    bench.rate(rows)  # warms up
    rate = bench.rate(rows)
    table = []
    for load in loads:
        ratios: dict[str, list[dict[str, float]]] = {side.name: [] for side in SIDES}
        absolute: dict[str, list[float]] = {side.name: [] for side in SIDES}
        for number in range(-warm, rounds):
            arrivals = poisson(load * rate, seconds, number)
            turn = number % len(SIDES)
            runs = {s.name: bench.run(s, arrivals) for s in (*SIDES[turn:], *SIDES[:turn])}
            reference, expected = runs[SIDES[0].name]
            for name, (latencies, ids) in runs.items():
                assert ids == expected, f"{name} gave other tokens"
                if number < 0:
                    continue
                ratios[name].append(latencies.over(reference))
                absolute[name].append(latencies.mean)
        table += [
            {
                "load": load,
                "side": side.name,
                "mean_us": vars(Spread.of(absolute[side.name])),
                "over_synchronous": {
                    figure: vars(Spread.of([ratio[figure] for ratio in ratios[side.name]]))
                    for figure in ratios[side.name][0]
                },
            }
            for side in SIDES
        ]
    return {"rows": rows, "tokens": tokens, "warm": warm, "served_per_s": rate, "by_load": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--load", type=float, nargs="*", default=[0.2, 0.4, 0.6, 0.8])
    parser.add_argument("--steps", type=at_least_one, default=4000)
    parser.add_argument("--rows", type=at_least_one, default=16)
    parser.add_argument("--jitter", type=float, default=0.05)
    parser.add_argument("--prompt-us", type=float, default=500)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--real-load", type=float, nargs="*", default=[0.3, 0.6])
    parser.add_argument("--tokens", type=at_least_one, default=24, help="of each real request")
    parser.add_argument("--seconds", type=float, default=2.5, help="of arrivals in a real run")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--warm", type=at_least_one, default=8, help="rounds before, not counted")
    parser.add_argument(
        "--width",
        type=at_least_one,
        help="of a random model of four layers, in place of the embedded one",
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.tokens == 1:
        parser.error("--tokens: there is a time between tokens from 2 on")
    model = Model(given.steps, given.rows, given.jitter, given.prompt_us)
    result: dict[str, Any] = {"simulated": simulate_sides(model, given.load)}
    print("simulated; ratios to the synchronous loop at the same arrivals")
    for name, period in result["simulated"]["period_us"].items():
        print(f"{name:22} {period:8.0f} µs per step with all rows busy")
    columns = f"{'mean':>8} {'median':>8} {'p90':>8} {'gap':>8}"
    print(f"{'load':>4} {'side':22} {'mean ms':>8} {columns}")
    for row in result["simulated"]["by_load"]:
        ratios = " ".join(f"{ratio:8.3f}" for ratio in row["over_synchronous"].values())
        print(f"{row['load']:4} {row['side']:22} {row['us']['mean'] / 1e3:8.2f} {ratios}")
    if given.real:
        with tempfile.TemporaryDirectory() as folder:
            path = None if given.width is None else random_model(Path(folder), given.width)
            result["real"] = measure_sides(
                given.real_load,
                given.rows,
                given.tokens,
                given.seconds,
                given.rounds,
                given.warm,
                path,
            )
        what = "embedded model" if given.width is None else f"random model, width {given.width}"
        print(f"{what}; medians over {given.rounds} rounds of the same ratios")
        for row in result["real"]["by_load"]:
            ratios = " ".join(f"{each['median']:8.3f}" for each in row["over_synchronous"].values())
            mean_ms = row["mean_us"]["median"] / 1e3
            print(f"{row['load']:4} {row['side']:22} {mean_ms:8.2f} {ratios}")
    save("ttft" if given.width is None else f"ttft_{given.width}", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
