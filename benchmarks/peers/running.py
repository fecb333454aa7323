"""Both sides of a cell: two processes with a limit of time and memory, run in turn."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ..paired import Spread
from .cells import DRAFTS, Cell, Side
from .environments import ENVIRONMENTS, WORKERS, gguf, openvino
from .shapes import checkpoint

LOOK_S = 0.2  # how often a process's memory is read
LONG_S = 60.0  # a round of so many seconds counts though it is the first: warming up is lost in it


class Ended(Exception):
    """A side did not do its work: it died, or was ended at a limit."""


@dataclass(frozen=True)
class Limits:
    """Of a cell's time, and of the memory of each of its processes."""

    seconds: float
    gib: float


class Worker:
    """A process of `workers/worker.py`; `ask` sends a command and waits for its answer."""

    def __init__(self, name: str, process: subprocess.Popen[str], said: Path, limits: Limits):
        self.name, self._process, self._said, self._limits = name, process, said, limits
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, command: str | None, until: float) -> dict[str, Any]:
        """The answer; of no command, what it says once it has loaded. Raises `Ended`."""
        if command is not None:
            assert self._process.stdin is not None, "it is a pipe"
            with contextlib.suppress(BrokenPipeError):
                print(command, file=self._process.stdin, flush=True)
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._answers.get(timeout=LOOK_S)
                if not line:
                    raise Ended(f"{self.name}: {self._last_words()}")
                answer: dict[str, Any] = json.loads(line)
                return answer
            if monotonic() > until:
                raise Ended(f"{self.name}: ended at its limit of time")
            if (memory := _resident(self._process.pid)) > self._limits.gib * 2**30:
                raise Ended(f"{self.name}: ended at {memory / 2**30:.1f} GiB of memory")

    def _last_words(self) -> str:
        lines = self._said.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"ended with {self._process.wait()}"


def _resident(process: int) -> int:
    """Bytes of memory that a process has now; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


@contextmanager
def started(
    name: str, side: Side, work: Mapping[str, Any], environments: Path, limits: Limits
) -> Iterator[Worker]:
    """The worker of one side, which is ended behind the block."""
    python = sys.executable
    if side.environment is not None:
        python = str(ENVIRONMENTS[side.environment].python(environments))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        told, said = Path(folder) / "work.json", Path(folder) / "said.txt"
        told.write_text(json.dumps({**work, **side.told}))
        process = subprocess.Popen(
            [python, "-W", "ignore", str(WORKERS / "worker.py"), side.module, str(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stack.enter_context(said.open("w")),
            text=True,
            cwd=folder,
        )
        try:
            yield Worker(name, process, said, limits)
        finally:
            process.kill()
            process.communicate()


def work_of(cell: Cell, models: Path, environments: Path, threads: int) -> dict[str, Any]:
    """What both sides are told; weights are made, and converted for the opponent, if need be."""
    folder = checkpoint(cell.shape, models)
    work: dict[str, Any] = {
        "target": str(folder / "target"),
        "draft": str(folder / "draft"),
        "dtype": cell.dtype,
        "threads": threads,
        "tokens": cell.tokens,
        "prompts": cell.prompts(),
        "drafts": DRAFTS,
    }
    match cell.opponent.side.environment:
        case "llama_cpp":
            work["gguf"] = str(gguf(folder, cell.dtype, environments))
        case "openvino":
            work["openvino"] = str(openvino(folder, environments))
    return work


def measured(
    cell: Cell, work: Mapping[str, Any], environments: Path, *, rounds: int, limits: Limits
) -> dict[str, Any]:
    """Alternating rounds of both sides after one that is not counted, unless it is long.

    No round begins when half of the time is over, but for the first. Raises `Ended`.
    """
    begun = monotonic()
    until = begun + limits.seconds
    sides = {"ours": cell.opponent.ours, cell.opponent.name: cell.opponent.side}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(started(name, side, work, environments, limits))
            for name, side in sides.items()
        }
        about = {name: each.ask(None, until) for name, each in workers.items()}
        last = {name: each.ask("run", until) for name, each in workers.items()}
        if sum(each["seconds"] for each in last.values()) > LONG_S:
            for name, each in last.items():
                seconds[name].append(each["seconds"])
        for turn in range(len(seconds["ours"]), rounds):
            if turn and monotonic() > begun + limits.seconds / 2:
                break
            for name in [*workers][:: 1 if turn % 2 == 0 else -1]:
                last[name] = workers[name].ask("run", until)
                seconds[name].append(last[name]["seconds"])
    ours, theirs = (seconds[name] for name in sides)
    return {
        "theirs_over_ours": vars(Spread.of([b / a for a, b in zip(ours, theirs, strict=True)])),
        "rounds": len(ours),
        "most_mib": cell.most_mib(),
        "tokens": compared(*(last[name]["tokens"] for name in sides)),
        "sides": {
            name: {
                "seconds": vars(Spread.of(seconds[name])),
                "tokens_per_s": cell.batch * cell.tokens / Spread.of(seconds[name]).median,
                "peak_mib": round(last[name]["peak_bytes"] / 2**20),
                "loaded_s": round(about[name]["loaded_s"], 2),
                "about": about[name]["about"],
            }
            for name in sides
        },
    }


def compared(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, Any]:
    """How many rows are equal, and the first token that is not."""
    different = [
        next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        for one, other in zip(ours, theirs, strict=True)
        if one != other
    ]
    return {
        "equal": not different,
        "rows_equal": len(ours) - len(different),
        "rows": len(ours),
        "first_difference": min(different, default=None),
    }
