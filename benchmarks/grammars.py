"""What grammars cost: compiling each of a set of schemas, and filling masks under it.

Per backend and vocabulary: milliseconds to compile, microseconds to fill one mask, over the states
of random walks along the masks. Schemas are ones that servers get, and ones that have blocked them.
A compilation that takes longer than the limit is stopped, and says so. The second table fills the
masks of a whole batch, together and row by row.

    python -m benchmarks.grammars [--vocab 50000] [--limit 10] [--steps 60] [--only length_32]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from stepweave import LLM
from stepweave.structured.backend import (
    CompiledGrammar,
    GrammarBackend,
    Matcher,
)
from stepweave.structured.bitmask import Words, words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarError, GrammarSpec, MatcherFailure
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .paired import Spread, at_least_one, own_process, rounds, save
from .workload import real_size_tokenizer, schema

BATCHES = ((2, 0), (4, 0), (16, 0), (64, 0), (16, 3))
"""Rows and drafts per row."""


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return inner


def specs() -> dict[str, GrammarSpec]:
    """By name: what is usual, then what is hard."""
    schemas: dict[str, Any] = {
        "four_strings": schema(False),
        **{f"length_{n}": {"type": "string", "maxLength": n} for n in (8, 32, 256, 2048)},
        "enum_4000": {"enum": [f"value number {index}" for index in range(4000)]},
        "nested_30": nested(30),
        "optional_1000": {
            "type": "object",
            "properties": {f"p{index}": {"type": "integer"} for index in range(1000)},
        },
        "pattern_200": {"type": "string", "pattern": "^([a-z]{1,200}-){1,200}$"},
    }
    found = {name: GrammarSpec.from_request({"json": each}) for name, each in schemas.items()}
    found["json_object"] = GrammarSpec("json_object", "")
    found["ebnf"] = GrammarSpec("grammar", 'root ::= "[" (root ("," root)*)? "]" | [0-9]+')
    found["regex_200"] = GrammarSpec("regex", "[a-z]{1,200}@[a-z]{1,200}")
    return found


def embedded_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = LLM(pipeline="quickstart").tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def backends(
    tokenizer: PreTrainedTokenizerFast, eos: int, limit_s: float
) -> dict[str, XGrammarBackend | LLGuidanceBackend]:
    vocab = len(tokenizer)
    return {
        "xgrammar": XGrammarBackend(
            tokenizer,
            vocab,
            (eos,),
            BackendOptions(compile_threads=1, compile_limit_s=limit_s, cache_bytes=0),
        ),
        "llguidance": LLGuidanceBackend(
            tokenizer, vocab, (eos,), BackendOptions(compile_limit_s=limit_s, cache_bytes=0)
        ),
    }


def allowed(row: Words) -> list[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def fill_times(matcher: Matcher, vocab: int, steps: int, eos: int) -> list[float]:
    """Microseconds per mask along one random walk that ends only where it must."""
    rng = random.Random(0)
    row = np.zeros((1, words(vocab)), dtype=np.int32)
    times = []
    for _ in range(steps):
        begun = perf_counter()
        matcher.fill_window((), row)
        times.append((perf_counter() - begun) * 1e6)
        tokens = [token for token in allowed(row[0]) if token != eos]
        if not tokens:
            break
        matcher.accept(rng.choice(tokens))
    return times


def measure(backend: GrammarBackend, spec: GrammarSpec, steps: int, eos: int) -> dict[str, Any]:
    begun = perf_counter()
    try:
        compiled = backend.compile(spec)
    except GrammarError as error:
        return {"compile_ms": (perf_counter() - begun) * 1e3, "refused": str(error)[:160]}
    result: dict[str, Any] = {"compile_ms": (perf_counter() - begun) * 1e3}
    try:
        times = fill_times(compiled.matcher(), backend.vocab_size, steps, eos)
    except MatcherFailure as failure:
        return {**result, "failed": str(failure)[:160]}
    centiles = (
        statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    )
    return {
        **result,
        "fill_us": {"p50": centiles[49], "p99": centiles[98], "max": max(times)},
        "masks": len(times),
    }


def chain(matcher: Matcher, vocab: int, eos: int, length: int, seed: int) -> list[int]:
    """Tokens that may follow one after another; the matcher is left as it was."""
    rng, row = random.Random(seed), np.zeros((1, words(vocab)), dtype=np.int32)
    taken: list[int] = []
    for _ in range(length):
        matcher.fill_window((), row)
        tokens = [token for token in allowed(row[0]) if token != eos]
        if not tokens:
            break
        taken.append(rng.choice(tokens))
        matcher.accept(taken[-1])
    matcher.rollback(len(taken))
    return taken


class Batch:
    """Windows of several requests that stand at different places of one grammar."""

    def __init__(
        self, compiled: CompiledGrammar, vocab: int, eos: int, rows: int, drafts: int, skip: int
    ) -> None:
        self._mask = np.zeros((rows, drafts + 1, words(vocab)), dtype=np.int32)
        self._compiled = compiled
        self._items: list[tuple[Matcher, Sequence[int], int]] = []
        self._before: list[list[int]] = []
        for row in range(rows):
            matcher = compiled.matcher()
            before = chain(matcher, vocab, eos, skip, seed=row)
            matcher.advance(before)
            self._before.append(before)
            self._items.append((matcher, chain(matcher, vocab, eos, drafts, row), row))

    def one_by_one(self) -> float:
        return self._timed(
            lambda: [
                matcher.fill_window(drafts, self._mask[row]) for matcher, drafts, row in self._items
            ]
        )

    def together(self) -> float:
        return self._timed(lambda: fill_batch(self._items, self._mask))

    def _timed(self, work: Callable[[], object]) -> float:
        """Microseconds, with matchers of their own: a library may remember the mask it gave."""
        for index, (_, drafts, row) in enumerate(self._items):
            matcher = self._compiled.matcher()
            matcher.advance(self._before[index])
            self._items[index] = (matcher, drafts, row)
        begun = perf_counter()
        work()
        return (perf_counter() - begun) * 1e6


def batches(backend: GrammarBackend, eos: int, count: int, most_rows: int) -> dict[str, Any]:
    """Microseconds for all masks of a batch, row by row and together."""
    compiled = backend.compile(GrammarSpec.from_request({"json": schema(False)}))
    found = {}
    for place, skip in (("structure", 1), ("string", 12)):
        for rows, drafts in BATCHES:
            if rows > most_rows:
                continue
            batch = Batch(compiled, backend.vocab_size, eos, rows, drafts, skip)
            one, together = rounds(count, batch.one_by_one, batch.together)
            ratios = [a / b for a, b in zip(one, together, strict=True)]
            found[f"{place}, {rows} rows, {drafts} drafts"] = {
                "one_by_one_us": vars(Spread.of(one)),
                "together_us": vars(Spread.of(together)),
                "ratio": vars(Spread.of(ratios)),
            }
    return found


def line(name: str, backend: str, got: dict[str, Any]) -> str:
    start = f"{name:15} {backend:10} {got['compile_ms']:9.1f} ms"
    if "fill_us" not in got:
        return f"{start}   {got.get('refused') or got.get('failed')}"[:110]
    return start + "".join(f" {got['fill_us'][each]:10.1f}" for each in ("p50", "p99", "max"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--vocab", type=at_least_one, default=50000)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per compilation")
    parser.add_argument("--steps", type=at_least_one, default=60, help="masks per schema")
    parser.add_argument("--rounds", type=at_least_one, default=15, help="per batch")
    parser.add_argument("--most-rows", type=at_least_one, default=64, help="of a batch")
    parser.add_argument("--only", action="append", metavar="SCHEMA")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    embedded = embedded_tokenizer()
    vocabularies = [
        ("embedded", embedded, int(embedded.eos_token_id)),
        ("real_size", real_size_tokenizer(given.vocab), 0),
    ]
    result: dict[str, Any] = {"llguidance": version("llguidance"), "limit_s": given.limit}
    for label, tokenizer, eos in vocabularies:
        print(f"{label}, {len(tokenizer)} tokens{'':19} compile   fill, µs: p50 p99 max")
        table: dict[str, Any] = {}
        batched: dict[str, Any] = {}
        for backend_name, backend in backends(tokenizer, eos, given.limit).items():
            backend.start()
            for name, spec in specs().items():
                if given.only and name not in given.only:
                    continue
                got = measure(backend, spec, given.steps, eos)
                table.setdefault(name, {})[backend_name] = got
                print(line(name, backend_name, got))
            batched[backend_name] = batches(backend, eos, given.rounds, given.most_rows)
            for name, figures in batched[backend_name].items():
                one, both = (figures[each]["median"] for each in ("one_by_one_us", "together_us"))
                print(
                    f"{backend_name:10} {name:32} one by one {one:9.1f}  together {both:9.1f} µs"
                    f"  ratio {figures['ratio']['median']:.2f}"
                )
            backend.close()
        result[label] = {"tokens": len(tokenizer), "schemas": table, "batches": batched}
    save("grammars", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
