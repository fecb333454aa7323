"""Where the device's time of a decode step goes: kernels by name, and what lies between them.

A Llama-shaped model with random weights decodes with captured graphs, with layers as they are and
compiled. Two runs of the same prompts, one with more tokens than the other, differ in decode steps
alone: each kernel's launches and time per step are the difference over the number of these steps,
by torch's profiler. Between kernels lies what the same two runs take longer when nobody looks. (A
rehearsal names operators of the CPU.)

    python -m benchmarks.gpu.device_time [--model 8b] [--batch 1 32] [--top 12] [--toy]
"""

from __future__ import annotations

import statistics
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.profiler import ProfilerActivity, profile

from stepweave.models.causal_lm import CausalLM

from ..paired import at_least_one
from .networks import SIZES, TOY, random_model, served, twin
from .roofline import Work, bandwidth
from .session import Session, begin
from .workbench import Served, replayed, serve


@dataclass
class Seen:
    """What the profiler saw of a run: launches and µs of each kernel, and its steps."""

    launches: Counter[str] = field(default_factory=Counter)
    us: Counter[str] = field(default_factory=Counter)
    steps: int = 0


def per_step(short: Seen, long: Seen) -> dict[str, dict[str, float]]:
    """Of each kernel, in the steps that the long run has more; most time first."""
    steps = long.steps - short.steps
    found = {
        name: {
            "launches": (count - short.launches[name]) / steps,
            "us": (long.us[name] - short.us[name]) / steps,
        }
        for name, count in long.launches.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]["us"]))


class Decoding:
    """One pipeline, and two runs of it, one with twice the tokens."""

    def __init__(self, session: Session, model: CausalLM, work: Work) -> None:
        self.short, self.long = work, replace(work, tokens=2 * work.tokens)
        self.executor = session.executor(graphs=True)
        self.engine = self.long.engine(model, self.executor, graphs=True)
        self._activity = ProfilerActivity.CPU if session.toy else ProfilerActivity.CUDA

    def run(self, work: Work) -> Served:
        return serve(self.engine, work.requests())

    def seen(self, work: Work) -> Seen:
        with profile(activities=[self._activity], acc_events=True) as events:
            found = Seen(steps=self.run(work).steps)
        for each in events.events() or ():
            if each.device_type.name == self._activity.name:
                found.launches[each.name] += 1
                found.us[each.name] += each.self_cpu_time_total or each.time_range.elapsed_us()
        return found

    def measured(self, rounds: int) -> dict[str, Any]:
        for work in (self.short, self.long) * 2:
            self.run(work)  # notes shapes and captures
        pairs = [(self.run(self.short), self.run(self.long)) for _ in range(rounds)]
        kernels = per_step(self.seen(self.short), self.seen(self.long))
        step_us = statistics.median(
            (b.seconds - a.seconds) * 1e6 / (b.steps - a.steps) for a, b in pairs
        )
        busy_us = sum(each["us"] for each in kernels.values())
        return {
            "step_us": step_us,
            "busy_us": busy_us,
            "between_us": step_us - busy_us,
            "launches": sum(each["launches"] for each in kernels.values()),
            "kernels": kernels,
            "graphs": replayed(self.executor),
        }


def show(session: Session, title: str, part: dict[str, Any], top: int) -> None:
    session.say(
        f"{title}: step {part['step_us']:.0f} µs, kernels {part['busy_us']:.0f} µs in "
        f"{part['launches']:.0f} launches, floor {part['floor_us']:.0f} µs, "
        f"replayed {part['graphs'].get('replayed_share', 0):.1%}"
    )
    for name, each in list(part["kernels"].items())[:top]:
        session.say(f"  {each['us']:9.1f} µs {each['launches']:7.1f} × {name[:96]}")


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    size = TOY if session.toy else SIZES[given.model]
    per_s = bandwidth(session.device)
    parts: dict[str, Any] = {}
    plain = random_model(size, session.device, session.dtype)
    for layers in ("as they are", "compiled")[: 1 + given.compile]:
        model = served(twin(plain, size), compiled=layers == "compiled")
        for batch in given.batch:
            title = f"layers {layers}, batch {batch}"
            if parts and session.over:
                session.say(f"{title}: no time left")
                continue
            work = Work(size, batch, 16 if session.toy else given.prompt, given.tokens)
            part = Decoding(session, model, work).measured(given.rounds)
            part["floor_us"] = work.floor_s(per_s, session.dtype.itemsize) * 1e6
            parts[title] = part
            show(session, title, part, given.top)
            session.save({"model": size.name, "copy_bytes_per_s": per_s, "parts": parts})
            session.release()
        del model
        session.release()
    return {"model": size.name, "copy_bytes_per_s": per_s, "parts": parts}


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--model", choices=sorted(SIZES), default="8b")
    parser.add_argument("--batch", type=at_least_one, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=at_least_one, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=at_least_one, default=32, help="the runs differ by")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--top", type=at_least_one, default=14, help="kernels to print")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="run layers as they are"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    return measure(begin("device_time", __doc__, argv, options, minutes=4))


if __name__ == "__main__":
    main()
