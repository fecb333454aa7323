"""Asynchronous scheduling × speculation × grammars: all eight, on the same requests.

Every side writes the same stored texts (`steering.py`), so its tokens can be checked, and drafts
are right as often as gives 2.25 tokens a step: **synthetic acceptance**, real compute. A side
counts only if each request gave its text to the last token; accepted drafts must be exactly those
that the rule foretells, and drafts offered and accepted must be equal with and without overlap.
*Sync* is the same graph at depth 1 on the same executor, with the same CUDA graphs. TPOT: mean over
requests of (last − first token) / (tokens − 1); ITL: between what a request gets and what it gets
next; E2E: the whole run, prompts included. All sides pay for the steering, a pass over the logits.

    python -m benchmarks.gpu.cube [--model 8b] [--concurrency 10 100] [--stress] [--toy]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from stepweave.executors.run import Executor
from stepweave.models.causal_lm import CausalLM
from stepweave.serving.engine import Engine

from ..paired import at_least_one
from . import steering
from .networks import DRAFTER, SIZES, TOY, TOY_DRAFTER, random_model, served
from .session import Session, alternate, begin, ratios, spread
from .traces import MIXED, STRESS, Traces, make
from .workbench import (
    Pipeline,
    Served,
    engine,
    forget_counts,
    prompts,
    replayed,
    request,
    serve,
)

K, TOKENS_PER_STEP = 3, 2.25  # as of vLLM with an EAGLE-3 head of Llama-3.1-8B

COMPARED = {
    # What each ratio is of: the side above, the side below, and the figure.
    "speculation, with async and grammar: TPOT": ("async, grammar", "async, spec, grammar", "tpot"),
    "speculation, with async and grammar: E2E": ("async, grammar", "async, spec, grammar", "e2e"),
    "async, with speculation and grammar: E2E": (
        "sync, spec, grammar",
        "async, spec, grammar",
        "e2e",
    ),
    "async, with speculation: E2E": ("sync, spec", "async, spec", "e2e"),
    "async, with grammar: E2E": ("sync, grammar", "async, grammar", "e2e"),
    "async alone: E2E": ("sync", "async", "e2e"),
    "grammar, with async and speculation: step time": (
        "async, spec, grammar",
        "async, spec",
        "step",
    ),
    "grammar, with async: step time": ("async, grammar", "async", "step"),
}


@dataclass(frozen=True)
class Cell:
    """One corner of the cube."""

    depth: int
    speculates: bool
    structured: bool

    @property
    def name(self) -> str:
        parts = ["sync" if self.depth == 1 else "async"]
        parts += ["spec"] * self.speculates + ["grammar"] * self.structured
        return ", ".join(parts)


CELLS = tuple(Cell(d, s, g) for d, s, g in product((1, 2), (False, True), (False, True)))


@dataclass(frozen=True)
class Workload:
    """The same requests for every side."""

    rows: int
    count: int
    prompt: int
    traces: Traces
    path: Path
    vocab: int
    k: int = K

    @property
    def context(self) -> int:
        return self.prompt + self.prompt // 4 + max(self.traces.lengths) + 2 * self.k + 2

    def requests(self, cell: Cell) -> list[Any]:
        length = max(self.traces.lengths)
        return [
            request(
                uid,
                prompt,
                length,
                self.vocab,
                traces=self.traces,
                structured=cell.structured,
                window=1 + self.k * cell.speculates,
            )
            for uid, prompt in enumerate(prompts(self.count, self.prompt, self.vocab))
        ]

    def check(self, cell: Cell, served: Served) -> None:
        """Raises `AssertionError` where a request did not do exactly what was foretold."""
        accepted = 0
        for uid, tokens in enumerate(served.tokens):
            index = uid % len(self.traces.lengths)
            expected = self.traces.expected(index, self.k * cell.speculates)
            accepted += expected.accepted
            assert tokens == expected.tokens, f"{cell.name}: request {uid} is not its text"
        assert served.accepted == accepted, (
            f"{cell.name}: {served.accepted} drafts accepted, by the rule {accepted}"
        )


class Bench:
    """The models, and an engine for each corner."""

    def __init__(self, session: Session, work: Workload, model: CausalLM, drafter: CausalLM):
        self.session, self.work = session, work
        self.executors: dict[Cell, Executor] = {}
        self.engines: dict[Cell, Engine] = {}
        for cell in CELLS:
            self.executors[cell] = session.executor(graphs=True)
            self.engines[cell] = engine(
                Pipeline(
                    depth=cell.depth,
                    draft_tokens=work.k * cell.speculates,
                    structured=cell.structured,
                    steered=work.path,
                ),
                model,
                self.executors[cell],
                rows=work.rows,
                context=work.context,
                budget=max(2 * work.prompt, work.rows * (work.k + 1)),
                drafter=drafter,
            )

    def run(self, cell: Cell) -> Served:
        served = serve(self.engines[cell], self.work.requests(cell))
        self.work.check(cell, served)
        return served

    def measure(self, rounds: int, until: float) -> dict[str, Any]:
        for _ in range(1 if self.session.toy else 2):  # compiles and notes shapes, then captures
            for cell in CELLS:
                self.run(cell)
        for executor in self.executors.values():
            forget_counts(executor)
        sides = {cell.name: partial(self.run, cell) for cell in CELLS}
        found = alternate(sides, rounds=rounds, until=until)
        return {
            "corners": {
                cell.name: {
                    **_figures(found[cell.name]),
                    "graphs": replayed(self.executors[cell]),
                }
                for cell in CELLS
            },
            "ratios": {name: _ratio(found, *of) for name, of in COMPARED.items()},
            "rounds": len(next(iter(found.values()))),
        }


def _figures(runs: Sequence[Served]) -> dict[str, Any]:
    first = runs[0]
    assert all((run.drafted, run.accepted) == (first.drafted, first.accepted) for run in runs)
    return {
        "tpot_ms": spread([run.tpot_s * 1e3 for run in runs]),
        "itl_median_ms": spread([statistics.median(run.gaps_s) * 1e3 for run in runs]),
        "itl_mean_ms": spread([statistics.fmean(run.gaps_s) * 1e3 for run in runs]),
        "seconds": spread([run.seconds for run in runs]),
        "tokens": sum(map(len, first.tokens)),
        "steps": first.steps,
        "tokens_per_step": first.tokens_per_step,
        "drafted": first.drafted,
        "accepted": first.accepted,
    }


def _ratio(found: dict[str, list[Served]], slow: str, fast: str, figure: str) -> dict[str, float]:
    return ratios(*([_figure(run, figure) for run in found[side]] for side in (slow, fast)))


def _figure(run: Served, name: str) -> float:
    match name:
        case "tpot":
            return run.tpot_s
        case "e2e":
            return run.seconds
    return statistics.median(run.gaps_s)


def checked(part: dict[str, Any]) -> dict[str, Any]:
    """Raises `AssertionError` unless overlap changed no count."""
    corners = part["corners"]
    for cell in CELLS:
        if cell.depth > 1:
            other = Cell(1, cell.speculates, cell.structured)
            for count in ("drafted", "accepted", "tokens"):
                a, b = corners[cell.name][count], corners[other.name][count]
                assert a == b, f"{count}: {a} in {cell.name}, {b} in {other.name}"
    return {**part, "tokens_equal": True, "counts_equal": True}


def show(session: Session, title: str, part: dict[str, Any]) -> None:
    session.say(f"{title}; {part['rounds']} rounds, medians")
    session.say(
        f"{'':22} {'TPOT ms':>9} {'ITL p50':>9} {'ITL mean':>9} {'E2E s':>8} {'tok/step':>9} "
        f"{'drafted':>8} {'accepted':>9} {'replayed':>9}"
    )
    for name, row in part["corners"].items():
        graphs = row["graphs"].get("replayed_share")
        share = "" if graphs is None else f"{graphs:9.1%}"
        session.say(
            f"{name:22} {row['tpot_ms']['median']:9.3f} {row['itl_median_ms']['median']:9.3f} "
            f"{row['itl_mean_ms']['median']:9.3f} {row['seconds']['median']:8.2f} "
            f"{row['tokens_per_step']:9.2f} {row['drafted']:8} {row['accepted']:9} {share:>9}"
        )
    for name, ratio in part["ratios"].items():
        session.say(f"{name:48} {ratio['median']:.3f}  [{ratio['low']:.3f} … {ratio['high']:.3f}]")


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    size, small = (TOY, TOY_DRAFTER) if session.toy else (SIZES[given.model], DRAFTER)
    found: dict[str, Any] = {
        "acceptance": f"synthetic, {TOKENS_PER_STEP} tokens a step, {K} drafts",
        "model": size.name,
        "parts": {},
    }
    networks = [random_model(each, session.device, session.dtype) for each in (size, small)]
    model, drafter = (served(each, compiled=given.compile) for each in networks)
    mixed = ("choice",) if session.toy else MIXED
    parts = [(f"concurrency {rows}", mixed, rows) for rows in given.concurrency]
    if given.stress:
        rows = given.concurrency[0]
        parts.append((f"bounded strings, concurrency {rows}", STRESS, rows))
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, schemas, rows) in enumerate(parts):
            if number and session.over:
                session.say(f"{title}: no time left")
                break
            path = Path(folder) / f"{number}.safetensors"
            traces = make(
                schemas, 2 if session.toy else 16, size.vocab, K, TOKENS_PER_STEP, threads=8
            )
            traces.save(path)
            count = given.requests or (rows + 1 if session.toy else max(60, 2 * rows))
            prompt = 24 if session.toy else given.prompt
            work = Workload(rows, count, prompt, traces, path, size.vocab)
            bench = Bench(session, work, model, drafter)
            until = session.until((number + 1) / len(parts))
            part = checked(bench.measure(given.rounds, until))
            part |= {"rows": rows, "requests": count, "prompt_tokens": prompt, "schemas": schemas}
            found["parts"][title] = part
            show(session, title, part)
            session.save(found)
            del bench
            session.release()
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=sorted(SIZES), default="8b")
    parser.add_argument("--concurrency", type=at_least_one, nargs="+", default=[10, 100])
    parser.add_argument(
        "--requests", type=at_least_one, help="default: 60, or twice the concurrency"
    )
    parser.add_argument(
        "--prompt", type=at_least_one, default=310, help="tokens of a prompt, on average"
    )
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--stress", action="store_true", help="also strings of bounded length")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="run layers as they are"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    session = begin("cube", __doc__, argv, options)
    with steering.installed():
        return measure(session)


if __name__ == "__main__":
    main()
