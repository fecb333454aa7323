"""The process that compiles grammars for `CompilerProcess`, so that it can be killed.

One JSON object per line. The first line in holds the settings, answered by {"result": true}; every
line after it is a job, answered by one line: {"result": …} or {"error": …}. Standard output is for
answers only.
"""

from __future__ import annotations

import base64
import json
import math
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Runner = Callable[[dict[str, Any]], Any]


def main() -> None:
    """Serve jobs until standard input ends."""
    settings = json.loads(sys.stdin.readline())
    try:
        run = {"xgrammar": _xgrammar, "llguidance": _llguidance}[settings["library"]](settings)
        _limit_memory(settings["memory_bytes"])
    except Exception as error:
        _answer({"error": str(error) or type(error).__name__})
        return
    _answer({"result": True})
    for line in sys.stdin:
        _limit_cpu(settings["cpu_s"])
        try:
            answer = {"result": run(json.loads(line))}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        _answer(answer)


def _xgrammar(settings: dict[str, Any]) -> Runner:
    """Jobs are those of `xgrammar_compile`; results are grammars as JSON text."""
    import xgrammar as xgr

    from .xgrammar_compile import Job, compile_job

    # Whoever asks keeps the result; a cache here would only hold memory.
    compiler: Any = xgr.GrammarCompiler(
        xgr.TokenizerInfo.deserialize_json(settings["tokenizer"]),
        max_threads=settings["threads"],
        cache_enabled=False,
    )
    return lambda job: compile_job(compiler, Job(**job)).serialize_json()


def _llguidance(settings: dict[str, Any]) -> Runner:
    """Jobs are {"grammar": text}; the result is true: the grammar can be compiled in time."""
    from .llguidance_compile import compile_grammar, make_tokenizer

    tokenizer = make_tokenizer(
        [base64.b64decode(token) for token in settings["tokens"]],
        settings["special"],
        settings["stop_tokens"],
    )

    def run(job: dict[str, Any]) -> bool:
        compile_grammar(tokenizer, job["grammar"])
        return True

    return run


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _limit_cpu(seconds: float) -> None:
    """End this process after so much more work. The parent kills it sooner, if it still lives."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit_memory(nbytes: int) -> None:
    """Let this process take so much more address space, where the system can say what it has."""
    status = Path("/proc/self/statm")
    if status.exists():
        taken = int(status.read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = taken + nbytes
        resource.setrlimit(
            resource.RLIMIT_AS,
            (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard),
        )


if __name__ == "__main__":
    main()
