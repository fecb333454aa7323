"""The process that compiles grammars for `CompilerProcess`, so that it can be killed.

One JSON object per line. The first line in is {"tokenizer": …, "threads": …, "limit_s": …},
answered by {"ready": true}; every line after it is a job, answered by one line: {"grammar": …} or
{"error": …}. Standard output is for answers only.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from typing import Any

import xgrammar as xgr

from .xgrammar_compile import Job, compile_job


def main() -> None:
    """Serve jobs until standard input ends."""
    settings = json.loads(sys.stdin.readline())
    # Whoever asks keeps the result; a cache here would only hold memory.
    compiler: Any = xgr.GrammarCompiler(
        xgr.TokenizerInfo.deserialize_json(settings["tokenizer"]),
        max_threads=settings["threads"],
        cache_enabled=False,
    )
    _answer({"ready": True})
    for line in sys.stdin:
        _limit_cpu(settings["limit_s"] * settings["threads"])
        try:
            answer = {"grammar": compile_job(compiler, Job(**json.loads(line))).serialize_json()}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        _answer(answer)


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _limit_cpu(seconds: float) -> None:
    """End this process after so much more work. The parent kills it sooner, if it still lives."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
