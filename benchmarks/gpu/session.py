"""What the GPU benchmarks share: options, the refusal without a GPU, time, rounds, results.

`--toy` rehearses a script on a CPU with tiny models: the same code from the first line to the last,
but no number of it means anything. It is labelled so, and never written to `results/`.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from stepweave.executors.on_streams import OnStreams
from stepweave.executors.run import Executor
from stepweave.executors.threads import run_threads
from stepweave.testing.devices.recorded_calls import RecordedCalls

_T = TypeVar("_T")

RESULTS = Path(__file__).parents[1] / "results"
REHEARSAL = "rehearsal"
PIECES = 512
"""Tokens of the largest step with prompts that is captured in pieces: as in the preset for GPUs."""


@dataclass
class Session:
    """One run of one script."""

    name: str
    toy: bool
    minutes: float
    json: Path | None
    options: argparse.Namespace
    began: float = field(default_factory=perf_counter)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.toy else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.toy else torch.bfloat16

    def until(self, share: float) -> float:
        """When so much of the time is over, by `perf_counter`."""
        return self.began + share * self.minutes * 60

    @property
    def over(self) -> bool:
        return perf_counter() > self.until(1.0)

    def executor(self, *, graphs: bool) -> Executor:
        """CUDA streams; in a rehearsal worker threads, and tapes in place of graphs."""
        if not self.toy:
            return OnStreams("cuda", graphs=graphs, pieces=PIECES)
        return RecordedCalls(graphs=True, pieces=PIECES) if graphs else run_threads

    def synchronize(self) -> None:
        if not self.toy:
            torch.cuda.synchronize()

    def release(self) -> None:
        """Give back the memory of what is no longer used, cycles included."""
        gc.collect()
        if not self.toy:
            torch.cuda.empty_cache()

    def say(self, text: str) -> None:
        label = f"[{REHEARSAL}] " if self.toy else ""
        print(f"{label}{text}", flush=True)

    def save(self, result: Mapping[str, Any]) -> None:
        """Write what there is so far, whole or not at all; a rehearsal only where it was told to.

        Called after each part, so that a run that is cut off loses only the part it was in.
        """
        target = self.json
        if target is None:
            if self.toy:
                return
            target = RESULTS / f"gpu_{self.name}.json"
        # Where files lie says nothing of what was measured.
        settings = {k: v for k, v in vars(self.options).items() if not isinstance(v, Path)}
        held = {
            "benchmark": self.name,
            REHEARSAL: self.toy,
            "machine": machine(self.device),
            "settings": settings,
            "seconds": round(perf_counter() - self.began, 1),
            **result,
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.write_text(json.dumps(held, indent=2) + "\n")
        part.replace(target)


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what it was measured."""
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "xgrammar")},
    }
    if device.type == "cpu":
        return {"device": f"cpu, {platform.machine()}", **found}
    about = torch.cuda.get_device_properties(device)
    return {
        "device": about.name,
        "memory_gib": round(about.total_memory / 2**30, 1),
        "multiprocessors": about.multi_processor_count,
        "cuda": torch.version.cuda,
        **found,
    }


def begin(
    name: str,
    about: str | None,
    argv: Sequence[str] | None,
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    *,
    minutes: float = 8.0,
) -> Session:
    """Read the options; end the program with a message where there is no GPU."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.gpu.{name}", description=(about or "").split("\n\n")[0]
    )
    parser.add_argument("--toy", action="store_true", help="rehearse on a CPU with tiny models")
    parser.add_argument("--minutes", type=float, default=minutes, help="begin no round after these")
    parser.add_argument("--json", type=Path, help="where to write, in place of results/")
    options(parser)
    given = parser.parse_args(argv)
    if given.toy and given.json is not None and RESULTS in given.json.resolve().parents:
        parser.error("a rehearsal is not written to results/: its numbers mean nothing")
    if not given.toy and not torch.cuda.is_available():
        print(
            f"benchmarks.gpu.{name} measures a GPU, and this torch ({torch.__version__}) sees none."
            " With --toy it rehearses on the CPU, with tiny models.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    if given.toy:
        torch.set_num_threads(1)
    return Session(name, given.toy, given.minutes, given.json, given)


def alternate(
    sides: Mapping[str, Callable[[], _T]], *, rounds: int, until: float
) -> dict[str, list[_T]]:
    """Rounds of all sides, each beginning with another; none begins after `until` but the first."""
    names = list(sides)
    found: dict[str, list[_T]] = {name: [] for name in names}
    for number in range(rounds):
        if number and perf_counter() > until:
            break
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            found[name].append(sides[name]())
    return found


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, for JSON."""
    if len(figures) < 2:
        return dict.fromkeys(("median", "low", "high"), float(figures[0]))
    low, middle, high = statistics.quantiles(figures, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def ratios(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratios of the same rounds."""
    return spread([a / b for a, b in zip(over, under, strict=True)])
