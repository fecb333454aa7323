"""The process that tries grammars for `CompilerProcess`: each in a copy of itself, with limits.

One JSON object per line. The first line in holds the settings, answered by {"ready": true}; every
line after it is a grammar, answered by one line: {"job": …}, {"refused": …} or {"ended": …}.
Standard output is for answers only.

Each grammar is tried in a fork of this process, which has the library loaded and has compiled
nothing. So every trial begins in the same state, whatever was tried before: what is refused does
not depend on it, and after a trial that was ended or has crashed the next one waits for no restart.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .grammar import GrammarSpec
from .job import Job
from .prepare import prepare
from .reading import Library
from .refusal import is_library_error, refused

Compile = Callable[[Job], object]


def main() -> None:
    """Serve grammars until standard input ends."""
    settings = json.loads(sys.stdin.buffer.readline())
    try:
        run = {"xgrammar": _xgrammar, "llguidance": _llguidance}[settings["library"]](settings)
    except Exception as error:
        _answer({"ended": f"{error}" or type(error).__name__})
        return
    os.nice(settings["nice"])  # whoever waits for a grammar waits; the engine's steps go first
    _answer({"ready": True})
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(_in_a_copy(line, settings, run) + b"\n")
        sys.stdout.buffer.flush()


def _xgrammar(settings: dict[str, Any]) -> Compile:
    import numpy as np
    import xgrammar as xgr

    from .xgrammar_compile import compile_job

    info = xgr.TokenizerInfo.deserialize_json(settings["tokenizer"])
    compiler: Any = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    row = np.zeros((1, -(-settings["vocab_size"] // 32)), dtype=np.int32)

    def run(job: Job) -> None:
        xgr.GrammarMatcher(compile_job(compiler, job)).fill_next_token_bitmask(row)

    return run


def _llguidance(settings: dict[str, Any]) -> Compile:
    from .llguidance_compile import compile_grammar, make_tokenizer

    tokenizer = make_tokenizer(
        [base64.b64decode(token) for token in settings["tokens"]],
        settings["special"],
        settings["stop_tokens"],
    )
    return lambda job: compile_grammar(tokenizer, job.source)


def _in_a_copy(line: bytes, settings: dict[str, Any], run: Compile) -> bytes:
    """The answer to a line, by a child process that has limits and may die."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for inherited in (0, 1, out):  # or the engine would not see this process's parent end
                os.close(inherited)
            _limit_memory(settings["memory_bytes"])
            signal.setitimer(signal.ITIMER_PROF, settings["cpu_s"])
            answer = _tried(json.loads(line), settings["library"], run)
            signal.setitimer(signal.ITIMER_PROF, 0)
            with os.fdopen(into, "wb") as pipe:
                pipe.write(json.dumps(answer).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        answer_line = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return answer_line
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return b'{"ended": "time"}'
    return b'{"ended": "died"}'


def _tried(asked: dict[str, Any], library: Library, run: Compile) -> dict[str, Any]:
    kind = asked["kind"]
    try:
        job = prepare(
            GrammarSpec(kind, asked["source"]),
            library,
            any_whitespace=asked["any_whitespace"],
            strict=asked["strict"],
        )
        run(job)
        return {"job": asdict(job)}
    except BaseException as error:
        if not is_library_error(error):
            raise
        why = refused(kind, error)
        return {"refused": {"cause": why.cause, "reasons": why.reasons[:MAX_REASONS]}}


MAX_REASONS = 64
"""Reasons of one refusal that are sent."""


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _limit_memory(nbytes: int) -> None:
    """Let this process write to so much more memory, where the system can say what it has."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        taken = int(fields["VmData"].split()[0]) * 1024
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = taken + nbytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    main()
