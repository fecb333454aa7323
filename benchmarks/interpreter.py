"""What the interpreter costs per step, against loops that call the same node bodies by hand.

An 8-node decode step (13 ops on a host thread and two streams) with stand-in bodies:

- serial: the serial executor against a plain loop over the bodies;
- threads: the threads executor against three hand-written workers with a queue for each launch
  and wait, that is, with the same hand-offs. The hand-written one is not told of failures,
  cannot be stopped or watched, checks no access and releases nothing early.

A and B run in turn, round by round, in alternating order; the figures are the median over the
rounds of the paired difference (and ratio), with the quartiles. What a run costs once, before its
first and after its last step, is taken from a run of no steps and shown by itself. Processor
time is given beside wall time: on a machine that others use too, it alone says what the
interpreter costs. The bodies hash a buffer, which releases the GIL as a kernel or a grammar fill
does; with `--hash-kib 0` they do nothing.

    python -m benchmarks.interpreter [--rounds 31] [--steps 1000] [--hash-kib 0 32] [--json FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter, process_time

from stepweave.executors import run
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph

from .paired import at_least_one, cuts, save

Body = Callable[..., int]


def body_of(kib: int) -> Body:
    """A stand-in for the work of one op: hashes `kib` KiB, or does nothing."""
    if kib == 0:
        return lambda *inputs: 0
    buffer = bytes(kib * 1024)

    def hash_buffer(*inputs: int) -> int:
        return hashlib.sha1(buffer).digest()[0]

    return hash_buffer


def decode_step(body: Body) -> Plan:
    """schedule, prepare, forward, bitmask, sample, draft, d2h_copy, commit at depth 2."""

    def op(reads: str, writes: str) -> Op:
        parsed = [name.partition("@-") for name in reads.split()]
        first, second = [*(name for name, _, _ in parsed), "", ""][:2]

        def work_on_one(ctx: OpContext) -> None:
            ctx.write(writes, body(ctx.read(first)))

        def work_on_two(ctx: OpContext) -> None:
            ctx.write(writes, body(ctx.read(first), ctx.read(second)))

        return Op(
            reads=tuple(Read(name, int(carry or 0)) for name, _, carry in parsed),
            writes=(writes,) if writes else (),
            run=(work_on_two if second else work_on_one) if writes else None,
        )

    launch = op("", "")
    nodes = [
        Node("schedule", (op("committed@-2", "batch"),)),
        Node("prepare", (op("batch", "staging"),), (op("staging sampled@-1", "inputs"),)),
        Node("forward", (launch,), (op("inputs", "logits"),)),
        Node("bitmask", (op("batch committed@-2", "mask"),)),
        Node("sample", (launch,), (op("logits mask", "sampled"),)),
        Node("draft", (launch,), (op("sampled", "drafts"),)),
        Node("d2h_copy", (launch,), (op("sampled drafts", "copied"),)),
        Node("commit", (op("copied", "committed"),), offset=1),
    ]
    streams = {"prepare": "compute", "forward": "compute", "sample": "compute"}
    streams |= {"draft": "compute", "d2h_copy": "copy"}
    pinned = [Value(name, "pinned", "slots") for name in ("staging", "mask", "copied")]
    device = [Value(name, "device", "slots") for name in ("inputs", "logits", "sampled", "drafts")]
    graph = StepGraph.build(
        [
            Node(n.name, n.host, n.device, stream=streams.get(n.name), offset=n.offset)
            for n in nodes
        ],
        [Value("batch"), Value("committed"), *pinned, *device],
        order="keep",
        name="decode",
    )
    return compile_plan(graph)


def by_hand(body: Body, steps: int) -> None:
    """The same dataflow as a plain loop."""
    sampled = 0
    committed = [0, 0]
    copied = 0
    for step in range(steps + 1):
        if step < steps:
            batch = body(committed[0])
            staging = body(batch)
            inputs = body(staging, sampled)
            logits = body(inputs)
            mask = body(batch, committed[0])
            sampled = body(logits, mask)
            drafts = body(sampled)
            copied, to_commit = body(sampled, drafts), copied
        else:
            to_commit = copied
        if step:
            committed = [committed[1], body(to_commit)]


def by_hand_on_threads(body: Body, steps: int) -> None:
    """The same launches and waits with three hand-written workers."""
    compute: SimpleQueue[tuple[Callable[[int], None], int] | None] = SimpleQueue()
    copy: SimpleQueue[tuple[Callable[[int], None], int] | None] = SimpleQueue()
    drafted: SimpleQueue[int] = SimpleQueue()
    copied: SimpleQueue[int] = SimpleQueue()
    batch, staging, mask, committed = [0] * 3, [0] * 3, [0] * 3, [0] * 3
    inputs, logits, sampled, drafts, host = [0] * 3, [0] * 3, [0] * 3, [0] * 3, [0] * 3

    def prepare(step: int) -> None:
        inputs[step % 3] = body(staging[step % 3], sampled[(step - 1) % 3])

    def forward(step: int) -> None:
        logits[step % 3] = body(inputs[step % 3])

    def sample(step: int) -> None:
        sampled[step % 3] = body(logits[step % 3], mask[step % 3])

    def draft(step: int) -> None:
        drafts[step % 3] = body(sampled[step % 3])
        drafted.put(step)

    def d2h_copy(step: int) -> None:
        drafted.get()
        host[step % 3] = body(sampled[step % 3], drafts[step % 3])
        copied.put(step)

    def driver() -> None:
        for step in range(steps + 1):
            if step < steps:
                batch[step % 3] = body(committed[(step - 2) % 3])
                staging[step % 3] = body(batch[step % 3])
                compute.put((prepare, step))
                compute.put((forward, step))
                mask[step % 3] = body(batch[step % 3], committed[(step - 2) % 3])
                compute.put((sample, step))
                compute.put((draft, step))
                copy.put((d2h_copy, step))
            if step:
                copied.get()
                committed[(step - 1) % 3] = body(host[(step - 1) % 3])
        compute.put(None)
        copy.put(None)

    def stream(queue: SimpleQueue[tuple[Callable[[int], None], int] | None]) -> None:
        while launched := queue.get():
            work, step = launched
            work(step)

    workers = [
        threading.Thread(target=driver),
        threading.Thread(target=stream, args=(compute,)),
        threading.Thread(target=stream, args=(copy,)),
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.setswitchinterval(before)


Taken = tuple[float, float]  # µs on the clock, µs of processor time
Quartiles = tuple[float, float, float]  # median, lower, upper


@dataclass(frozen=True)
class Result:
    """µs per step, paired over the rounds; `setup_us` is once per run."""

    executor: str
    hash_kib: int
    hand_us: float
    run_us: float
    setup_us: float
    extra_us: Quartiles
    extra_cpu_us: Quartiles
    ratio: Quartiles


def wall_and_cpu(work: Callable[[], object]) -> Taken:
    cpu, wall = process_time(), perf_counter()
    work()
    return (perf_counter() - wall) * 1e6, (process_time() - cpu) * 1e6


def quartiles(numbers: list[float]) -> Quartiles:
    low, middle, high = cuts(numbers, 4)
    return (round(middle, 4), round(low, 4), round(high, 4))


def measure(executor: str, kib: int, rounds: int, steps: int) -> Result:
    body = body_of(kib)
    plan = decode_step(body)
    assert len(plan.waits) == 2, "drafts to the copy stream, copies to the host: as by hand"
    hand = {
        "serial": lambda: by_hand(body, steps),
        "threads": lambda: by_hand_on_threads(body, steps),
    }[executor]
    contestants = {
        "hand": hand,
        "run": lambda: run(plan, executor=executor, steps=steps),
        "setup": lambda: run(plan, executor=executor, steps=0),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name in sorted(contestants, reverse=number % 2 == 0):
            sample = wall_and_cpu(contestants[name])
            if number:  # the first round warms up
                taken[name].append(sample)
    by_hand_us = [(wall / steps, cpu / steps) for wall, cpu in taken["hand"]]
    run_us = [
        ((all_wall - once_wall) / steps, (all_cpu - once_cpu) / steps)
        for (all_wall, all_cpu), (once_wall, once_cpu) in zip(
            taken["run"], taken["setup"], strict=True
        )
    ]
    pairs = list(zip(by_hand_us, run_us, strict=True))
    return Result(
        executor,
        kib,
        hand_us=round(statistics.median(wall for wall, _ in by_hand_us), 3),
        run_us=round(statistics.median(wall for wall, _ in run_us), 3),
        setup_us=round(statistics.median(wall for wall, _ in taken["setup"]), 1),
        extra_us=quartiles([b - a for (a, _), (b, _) in pairs]),
        extra_cpu_us=quartiles([b - a for (_, a), (_, b) in pairs]),
        ratio=quartiles([b / a for (a, _), (b, _) in pairs]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least_one, default=31)
    parser.add_argument("--steps", type=at_least_one, default=1000)
    parser.add_argument("--hash-kib", type=int, nargs="*", default=[0, 32])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    results = [
        measure(executor, kib, options.rounds, max(1, options.steps // (1 + kib // 8)))
        for kib in options.hash_kib
        for executor in ("serial", "threads")
    ]
    print("8 nodes, 13 ops; µs per step, paired median (quartiles)")
    columns = f"{'extra wall':>24} {'extra processor':>24} {'ratio of walls':>22}"
    print(f"{'executor':9} {'body':>7} {'by hand':>9} {'run':>9} {'once':>9} {columns}")
    for r in results:
        wall = "{:.2f} ({:.2f} to {:.2f})".format(*r.extra_us)
        cpu = "{:.2f} ({:.2f} to {:.2f})".format(*r.extra_cpu_us)
        ratio = "{:.3f} ({:.3f} to {:.3f})".format(*r.ratio)
        body = f"{r.hash_kib} KiB"
        print(
            f"{r.executor:9} {body:>7} {r.hand_us:9.2f} {r.run_us:9.2f} {r.setup_us:9.0f} "
            f"{wall:>24} {cpu:>24} {ratio:>22}"
        )
    save("interpreter", {"results": [asdict(result) for result in results]}, options.json)


if __name__ == "__main__":
    main()
