"""How long a request waits between two of its steps while somebody else's grammar is compiled.

A small random model over a vocabulary of real size decodes one request without a grammar. A second
request brings a grammar, and the time between consecutive steps is taken until that grammar is
there or refused. Grammars are those that compilers find hard; the first is an easy one, to compare.
The last column leaves out the time in which the decoding thread was ready to run but had no
processor: on a machine with other work, that part is not due to the grammar.

    python -m benchmarks.neighbours [--vocab 50000] [--limit 4] [--backend auto xgrammar]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from stepweave import LLM

from .paired import at_least_one, own_process, save
from .workload import random_llama, real_size_tokenizer

CONTEXT = 8192


def strings(count: int, longest: int) -> dict[str, Any]:
    text = {"type": "string", "maxLength": longest}
    names = [f"p{index}" for index in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, text), "required": names}


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}


GRAMMARS: dict[str, dict[str, Any]] = {
    "two choices": {"choice": ["a", "b"]},
    "3 strings of up to 1,000": {"json": strings(3, 1000)},
    "12 strings of up to 100": {"json": strings(12, 100)},
    "200 optional properties": {"json": optional(200)},
    "1,000 optional properties": {"json": optional(1000)},
    "4,000 choices": {"choice": [f"value number {index}" for index in range(4000)]},
    "nested repetitions": {"regex": "([a-z]{1,100}-){1,100}"},
    "repetitions in EBNF": {"grammar": 'root ::= [a-z]{1,2000} "," [a-z]{1,2000}'},
}


def without_processor() -> float:
    """Seconds that this thread has waited for a processor, where the system says so."""
    said = Path("/proc/thread-self/schedstat")
    return int(said.read_text().split()[1]) / 1e9 if said.exists() else 0.0


def wait_times(llm: LLM, grammar: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds between steps until the request with the grammar has ended."""
    moments: list[tuple[float, float]] = []

    def progress(ended: int, tokens: int) -> None:
        if ended:
            llm.cancel()
        else:
            moments.append((perf_counter(), without_processor()))

    [_, asked] = llm.generate(
        [
            {"prompt": "neighbour", "max_tokens": CONTEXT - 64, "ignore_eos": True},
            {"prompt": "a", "max_tokens": 1, "structured_outputs": grammar},
        ],
        on_progress=progress,
    )
    gaps = [(after - before) * 1e3 for (before, _), (after, _) in pairwise(moments)]
    served = [
        (after - before - (out - was_out)) * 1e3
        for (before, was_out), (after, out) in pairwise(moments)
    ]
    return {
        "seconds": moments[-1][0] - moments[0][0],
        "steps": len(gaps),
        "median_ms": statistics.median(gaps or [0.0]),
        "longest_ms": max(gaps, default=0.0),
        "longest_served_ms": max(served, default=0.0),
        "refused": asked.error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vocab", type=at_least_one, default=50000)
    parser.add_argument("--limit", type=float, default=4.0, help="seconds per compilation")
    parser.add_argument("--backend", nargs="+", default=["auto", "xgrammar", "llguidance"])
    parser.add_argument("--only", nargs="+", choices=GRAMMARS, default=GRAMMARS, metavar="GRAMMAR")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tokenizer = real_size_tokenizer(given.vocab)
    result: dict[str, Any] = {"limit_s": given.limit, "vocab": len(tokenizer)}
    with tempfile.TemporaryDirectory() as folder:
        random_llama(len(tokenizer), hidden=64, layers=1, context=CONTEXT).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for backend in given.backend:
            llm = LLM(
                folder,
                pipeline="async_grammar",
                overrides={
                    "torch_threads": "1",
                    "nodes.bitmask.backend": backend,
                    "nodes.bitmask.compile_limit_s": str(given.limit),
                    "scheduler.num_blocks": "1024",
                },
            )
            print(f"{backend:28} seconds  steps  step, ms: median  longest   served")
            result[backend] = {}
            wait_times(llm, {"choice": ["w", "x"]})  # the processes have started
            for name in given.only:
                grammar = GRAMMARS[name]
                got = result[backend][name] = wait_times(llm, grammar)
                print(
                    f"  {name:26} {got['seconds']:7.2f} {got['steps']:6} {got['median_ms']:16.1f}"
                    f" {got['longest_ms']:8.1f} {got['longest_served_ms']:8.1f}"
                    f"   {(got['refused'] or '')[:70]}",
                    flush=True,
                )
            llm.close()
    save("neighbours", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
