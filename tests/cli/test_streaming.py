"""`run --json` as another program sees it: lines as they come, and an end in order."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

STEPWEAVE = "from stepweave.cli.main import main\nmain()"
PRETENDED = """
import sys, types
from tests.cli.test_run import Made, PretendedInterruption
module = types.ModuleType("stepweave.serving.llm")
module.LLM, module.Interrupted = Made(), PretendedInterruption
sys.modules["stepweave.serving.llm"] = module
"""
ROOT = Path(__file__).parents[2]


@contextmanager
def stepweave(*arguments: str | Path, code: str = STEPWEAVE) -> Iterator[subprocess.Popen[str]]:
    """The command, with both its streams as pipes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for stream in (running.stdout, running.stderr):
            if stream is not None:
                stream.close()


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def test_a_line_is_there_before_the_next_request_ends_and_term_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    long = {"prompt": "Write a long story.", "ignore_eos": True, "max_tokens": 400}
    lines = [*({"id": f"long {index}", **long} for index in range(300))]
    lines += [{"id": "short", "prompt": "Hello", "max_tokens": 2, "priority": -1}]
    path.write_text("\n".join(map(json.dumps, lines)))
    arguments = ("run", "async", "--set", "scheduler.max_rows=1", "--json", "--prompts", path)
    with stepweave(*arguments) as running:
        first = json.loads(line_of(running.stdout))
        running.send_signal(signal.SIGTERM)
        out, said = running.communicate()
    assert (first["id"], first["finish_reason"]) == ("short", "length")
    assert first["timings"]["first_token_s"] > 0
    assert running.returncode == 143
    *others, last = [json.loads(line) for line in out.splitlines()]
    assert [each["id"] for each in others] == [line["id"] for line in lines[:-1]]
    assert {each["finish_reason"] for each in others[1:]} == {"cancelled"}
    assert last["summary"]["requests"] == 301
    done = 1 + sum(each["finish_reason"] != "cancelled" for each in others)
    assert said == f"terminated: {done} of 301 requests were done\n"


def test_a_reader_that_goes_away_ends_the_run_without_a_word() -> None:
    prompts = [word for index in range(1000) for word in ("--prompt", f"prompt {index}")]
    code = PRETENDED + STEPWEAVE
    with stepweave("run", "async", "--json", *prompts, code=code) as running:
        assert running.stdout is not None
        assert (
            json.loads(line_of(running.stdout))["id"] == "999"
        )  # more are to come than a pipe holds
        running.stdout.close()
        said = "" if running.stderr is None else running.stderr.read()
        running.wait()
    assert (running.returncode, said) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_full_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRETENDED + STEPWEAVE, "run", "async", "--prompt", "a"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert done.returncode == 2
