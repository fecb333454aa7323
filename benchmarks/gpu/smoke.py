"""Is it right at all: kernels against plain torch, captures against steps as usual, a trace.

For each shipped pipeline, with the embedded model in float32: the same prompts with Triton's
kernels and without must give equal tokens, and equal counts of drafts offered and accepted, since a
key in a wrong slot costs drafts and no token; once with caches in 8 bits too. Then the captured
graphs must have been replayed, and a traced run of them must have a time for each op. Each part is
saved when it is done; the exit status is 1 if one is wrong. In a rehearsal plain torch is on both
sides.

    python -m benchmarks.gpu.smoke [--pipelines async async_eagle3_grammar …] [--toy]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stepweave import LLM
from stepweave.backends.kernels import VARIABLE

from .session import Session, begin
from .workbench import replayed

PIPELINES = (
    "async_eagle3_grammar",
    "async",
    "async_tree",
    "async_eagle",
    "async_speculation",
    "async_ngram",
    "async_grammar",
    "grammar_worker",
    "drafter_stream",
)
"""The widest first, in case there is time for few."""

LINES: tuple[dict[str, Any], ...] = (
    {"prompt": "Write a short story about a fox named Ida.", "max_tokens": 40},
    {"prompt": "Extract name and items as JSON: Max Tanaka bought tea, bread and cheese."},
    {"prompt": "Write a short story about a dog.", "temperature": 0.8, "seed": 11, "top_k": 40},
    {"prompt": "Is this review positive or negative? What a wonderful lamp!", "max_tokens": 12},
)


@contextmanager
def kernels(which: str) -> Iterator[None]:
    """What is loaded and run in the block has these kernels."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = which
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def loaded(session: Session, pipeline: str, **overrides: Any) -> LLM:
    """On the GPU with everything else as the preset has it, but for what takes time to compile."""
    executor = "threads" if session.toy else "cuda"
    settings = {"executor": executor, "model.compile": "off", "model.invariant": False}
    if session.toy:  # a CPU records every number of rows: these take longer than all else
        settings["scheduler.max_rows"] = len(LINES)
        settings["pieces"] = 256  # as on a GPU
    return LLM(pipeline=pipeline, overrides={**settings, **overrides})


def counted(llm: LLM, most: int) -> list[list[Any]]:
    """Of each prompt: error, tokens, drafts offered and accepted."""
    lines = [{**line, "max_tokens": min(most, line.get("max_tokens", most))} for line in LINES]
    if llm.config.grammars is not None:
        lines[1]["structured_outputs"] = {"json": {"type": "object"}}
    return [
        [found.error, list(found.token_ids), found.drafted, found.accepted]
        for found in llm.generate(lines)
    ]


def against_plain_torch(session: Session, pipeline: str, **overrides: Any) -> dict[str, Any]:
    """One pipeline with kernels and without."""
    found: dict[str, list[list[Any]]] = {}
    for which in ("reference", "reference" if session.toy else "triton"):
        with kernels(which), loaded(session, pipeline, graphs=False, **overrides) as llm:
            found["kernels" if found else "plain torch"] = counted(llm, session.options.tokens)
        session.release()
    plain, with_kernels = found["plain torch"], found["kernels"]
    return {
        "right": plain == with_kernels and not any(error for error, *_ in plain),
        "tokens_equal": [a[1] == b[1] for a, b in zip(plain, with_kernels, strict=True)],
        "errors": [error for error, *_ in (*plain, *with_kernels) if error is not None],
        "drafted": {name: sum(row[2] for row in rows) for name, rows in found.items()},
        "accepted": {name: sum(row[3] for row in rows) for name, rows in found.items()},
    }


def in_8_bits(session: Session, pipeline: str) -> dict[str, Any]:
    """The same with caches in int8, which the kernels write and read with their scales."""
    return against_plain_torch(session, pipeline, **{"model.kv_cache_dtype": "int8"})


def captured(session: Session, pipeline: str) -> dict[str, Any]:
    """Replayed graphs against the same steps as usual, and a trace of the replayed ones."""
    most = session.options.tokens
    with loaded(session, pipeline, graphs=False) as llm:
        expected = counted(llm, most)
    with loaded(session, pipeline) as llm:
        llm.warm_up()
        found = [counted(llm, most) for _ in range(2)][-1]
        graphs = replayed(llm.engine.runner())
        traced = llm.traced([dict(line) for line in LINES[:2]])
        failed = llm.engine.totals.failed_steps
    events = traced.report.events
    ops = {event.op for event in events}
    timed = all(event.end_s >= event.start_s for event in events)
    share = graphs.get("replayed_share", 0.0)
    return {
        "right": found == expected
        and timed
        and not failed
        and {"forward.device", "sample.device"} <= ops
        and (session.toy or share > 0),
        "equal": found == expected,
        "failed_steps": failed,
        "events": len(events),
        "ops": sorted(ops),
        "graphs": graphs,
        "notes": llm.engine.notes(),
    }


def measure(session: Session) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    todo: list[tuple[str, Callable[[Session, str], dict[str, Any]], str]] = [
        *((f"kernels, {name}", against_plain_torch, name) for name in session.options.pipelines),
        *((f"8 bits, {name}", in_8_bits, name) for name in session.options.pipelines[:1]),
        *((f"captures, {name}", captured, name) for name in session.options.pipelines[:2]),
    ]
    # Every kind early: a call that is cut off has seen something of each.
    for name, check, pipeline in sorted(todo, key=lambda each: each[2] != todo[0][2]):
        if parts and session.over:
            session.say(f"{name}: no time left")
            continue
        try:
            parts[name] = check(session, pipeline)
        except Exception as error:  # what is wrong here is what this is for
            parts[name] = {"right": False, "error": f"{type(error).__name__}: {error}"[:600]}
        session.say(f"{name}: {'right' if parts[name]['right'] else f'WRONG {parts[name]}'}")
        session.save({"parts": parts})
        session.release()
    return {"parts": parts}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--tokens", type=int, default=40, help="of each prompt, at most")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    return measure(begin("smoke", __doc__, argv, options, minutes=3))


if __name__ == "__main__":
    raise SystemExit(any(not part["right"] for part in main()["parts"].values()))
