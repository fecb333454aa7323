"""How much of the host's work the derived overlap hides, and whether the period was predicted.

A: the serial executor at depth 1, the synchronous loop. B: the threads executor at depth 2. Same
requests, same tokens (checked), one torch thread and recorded steps on both sides. *Hidden* is the
time saved per step over what could be saved at most, the smaller of host and device time per step,
both taken from traced runs of A. The predicted period is that of the plan with the costs of a
traced run of B, the measured one the time per step of other, untraced runs of B.

    python -m benchmarks.overlap [--rows 16] [--draft-tokens 0] [--vocab 128000] [--actor auto]
                                 [--backend xgrammar]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from pathlib import Path

import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.report import RunReport
from stepweave.graph.planner.compile import compile_plan
from stepweave.models.causal_lm import CausalLM
from stepweave.models.tokenizer import StreamDecoder
from stepweave.nodes.draft_model import DRAFT_MODEL
from stepweave.nodes.node_config import AUTO
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.stopping import StopChecker
from stepweave.requests.table import Limits
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled
from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .paired import Spread, at_least_one, own_process, rounds, save
from .workload import random_llama, real_size_tokenizer, schema

PROMPT = 8
BACKENDS: dict[str, type[AutoBackend | XGrammarBackend | LLGuidanceBackend]] = {
    "auto": AutoBackend,
    "xgrammar": XGrammarBackend,
    "llguidance": LLGuidanceBackend,
}
BOUNDED = 5  # one request in so many has strings of bounded length


class Bench:
    """The same work on engines of different depth and executor."""

    def __init__(
        self,
        rows: int,
        k: int,
        vocab: int,
        hidden: int,
        layers: int,
        tokens: int,
        actor: str,
        backend: str,
    ):
        self.rows, self.k, self.tokens, self.actor = rows, k, tokens, actor
        self.costs: dict[str, float] = {}  # by which an open node is placed
        self.tokenizer = real_size_tokenizer(vocab)
        self.vocab = len(self.tokenizer)
        self.model = CausalLM.wrap(
            random_llama(self.vocab, hidden=hidden, layers=layers), invariant=False
        )
        self.drafter = (
            CausalLM.wrap(random_llama(self.vocab, hidden=64, layers=1), invariant=False)
            if k
            else None
        )
        library = BACKENDS[backend](self.tokenizer, self.vocab, (0,))
        self.grammars: list[CompiledGrammar] = [
            library.compile(GrammarSpec.from_request({"json": schema(bounded)}))
            for bounded in (False, True)
        ]

    def engine(self, depth: int, executor: str) -> Engine:
        k = self.k
        draft = {"draft": {"kind": "draft_model", "after": "sample", "tokens": k}} if k else {}
        config = load_config(
            "base",
            {
                "depth": depth,
                "scheduler.max_rows": self.rows,
                "scheduler.token_budget": self.rows * max(k + 1, PROMPT),
                "nodes": {"bitmask": {"after": "forward", "actor": self.actor}, **draft},
                "costs": self.costs,
            },
        )
        assert isinstance(config, PipelineConfig)
        limits = Limits(
            max_rows=self.rows,
            token_budget=config.scheduler.token_budget,
            block_size=16,
            num_blocks=self.rows * 32,
            context_length=512,
            draft_tokens=self.k,
            max_queue=self.rows,
        )
        return Engine(
            lambda resources: compiled(config, resources),
            self.model,
            limits,
            resources={} if self.drafter is None else {DRAFT_MODEL: self.drafter},
            executor=executor,
            graphs=True,
            torch_threads=1,
        )

    def run(self, engine: Engine, *, trace: bool = False) -> tuple[RunReport, list[list[int]], int]:
        rnd = random.Random(1)
        requests = []
        for uid in range(self.rows):
            prompt = tuple(rnd.randrange(1, self.vocab) for _ in range(PROMPT))
            params = SamplingParams(max_tokens=self.tokens, ignore_eos=True)
            requests.append(
                Request(
                    uid=uid,
                    id=str(uid),
                    prompt="",
                    prompt_ids=prompt,
                    params=params,
                    max_tokens=self.tokens,
                    stop_token_ids=frozenset(),
                    stopper=StopChecker((), (), self.tokens),
                    decoder=StreamDecoder(self.tokenizer, prompt),
                    grammar=self.grammars[uid % BOUNDED == 0],
                    window=1 + self.k,
                )
            )
        table = engine.new_table()
        table.submit_all(requests)
        report = engine.run(table, trace=trace)
        assert all(request.error is None for request in requests), requests[0].error
        return report, [request.output_ids for request in requests], table.steps


def costs_of(report: RunReport) -> dict[str, float]:
    """Median duration per op in µs, over the steps in which all rows decode."""
    durations: dict[str, list[float]] = defaultdict(list)
    for event in report.events:
        if 2 <= event.step < report.steps - 3:
            durations[event.op].append((event.end_s - event.start_s) * 1e6)
    return {op: statistics.median(each) for op, each in durations.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=at_least_one, default=16)
    parser.add_argument("--draft-tokens", type=int, default=0)
    parser.add_argument("--vocab", type=at_least_one, default=128000)
    parser.add_argument("--hidden", type=at_least_one, default=256)
    parser.add_argument("--layers", type=at_least_one, default=8)
    parser.add_argument("--actor", default="driver", help="the thread that fills masks, or auto")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="who fills masks")
    parser.add_argument("--tokens", type=at_least_one, default=200)
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(
        given.rows,
        given.draft_tokens,
        given.vocab,
        given.hidden,
        given.layers,
        given.tokens,
        given.actor,
        given.backend,
    )
    serial = bench.engine(1, "serial")
    _, expected, _ = bench.run(serial)
    if given.actor == AUTO:
        bench.costs = costs_of(bench.run(serial, trace=True)[0])
    threads = bench.engine(2, "threads")
    placed = [note for note in threads.plan.notes if note.startswith("placement")]
    print("\n".join(placed) or f"masks are filled on thread {given.actor!r}")
    _, tokens, _ = bench.run(threads)
    assert tokens == expected, "the pipelined run gave other tokens"

    def per_step(engine: Engine) -> float:
        report, _, steps = bench.run(engine)
        return report.seconds / steps * 1e6

    host, device, errors = [], [], []

    def traced() -> None:
        costs = costs_of(bench.run(serial, trace=True)[0])
        host.append(sum(us for op, us in costs.items() if ".host" in op))
        device.append(sum(us for op, us in costs.items() if ".device" in op))
        graph = threads.plan.graph
        costs = costs_of(bench.run(threads, trace=True)[0])
        predicted = compile_plan(graph, costs=costs, order="keep").period_us
        errors.append(predicted)

    a_us: list[float] = []
    b_us: list[float] = []
    for _ in range(given.rounds):
        a, b = rounds(1, lambda: per_step(serial), lambda: per_step(threads))
        a_us += a
        b_us += b
        traced()
    hideable = [min(h, d) for h, d in zip(host, device, strict=True)]
    hidden = [(a - b) / most for a, b, most in zip(a_us, b_us, hideable, strict=True)]
    ratio = [a / b for a, b in zip(a_us, b_us, strict=True)]
    period = [p / b for p, b in zip(errors, b_us, strict=True)]
    result = {
        "workload": {
            "rows": given.rows,
            "draft_tokens": given.draft_tokens,
            "backend": given.backend,
            "vocabulary": bench.vocab,
            "hidden": given.hidden,
            "layers": given.layers,
            "tokens": given.tokens,
            "masks": placed[0] if placed else given.actor,
        },
        "serial_us_per_step": vars(Spread.of(a_us)),
        "threads_us_per_step": vars(Spread.of(b_us)),
        "host_us": vars(Spread.of(host)),
        "device_us": vars(Spread.of(device)),
        "speed_ratio": vars(Spread.of(ratio)),
        "hidden": vars(Spread.of(hidden)),
        "predicted_over_measured_period": vars(Spread.of(period)),
        "tokens_equal": True,
    }
    print(f"rows {given.rows}, k {given.draft_tokens}, vocabulary {bench.vocab}")
    for name, figures in (
        ("serial, depth 1   µs/step", a_us),
        ("threads, depth 2  µs/step", b_us),
        ("host work         µs/step", host),
        ("device work       µs/step", device),
        ("serial / threads", ratio),
        ("hidden share", hidden),
        ("predicted / measured", period),
    ):
        print(f"{name:28} {Spread.of(figures)}")
    save("overlap", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
