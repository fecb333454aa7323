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
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from stepweave.models.causal_lm import CausalLM

from ..paired import at_least_one
from .networks import SIZES, TOY, random_model, served, twin
from .roofline import Work, bandwidth
from .session import Session, begin
from .workbench import BLOCK, Pipeline, Served, engine, replayed, request, serve


class Decoding:
    """One pipeline, and runs of it that differ in the number of tokens."""

    def __init__(self, session: Session, model: CausalLM, work: Work) -> None:
        self.work = work
        self.executor = session.executor(graphs=True)
        self._activity = ProfilerActivity.CPU if session.toy else ProfilerActivity.CUDA
        self._device = DeviceType.CPU if session.toy else DeviceType.CUDA
        self.engine = engine(
            Pipeline(depth=2),
            model,
            self.executor,
            rows=work.batch,
            context=work.prompt + 2 * work.tokens + BLOCK,
            budget=min(8192, max(256, work.batch * work.prompt)),
        )

    def run(self, times: int) -> Served:
        """Every row decodes so many times the tokens."""
        return serve(
            self.engine,
            [
                request(uid, prompt, times * self.work.tokens, self.work.size.vocab)
                for uid, prompt in enumerate(self.work.prompts())
            ],
        )

    def counted(self, times: int) -> tuple[Counter[str], Counter[str], int]:
        """Launches and µs of each kernel of a run, and its steps."""
        launches: Counter[str] = Counter()
        spent: Counter[str] = Counter()
        with profile(activities=[self._activity], acc_events=True) as seen:
            steps = self.run(times).steps
        for each in seen.events() or ():
            if each.device_type == self._device:
                launches[each.name] += 1
                spent[each.name] += each.self_cpu_time_total or each.time_range.elapsed_us()
        return launches, spent, steps

    def measured(self, rounds: int) -> dict[str, Any]:
        for _ in range(2):
            for times in (1, 2):
                self.run(times)  # notes shapes and captures
        pairs = [(self.run(1), self.run(2)) for _ in range(rounds)]
        short, long = self.counted(1), self.counted(2)
        steps = long[2] - short[2]
        kernels = {
            name: {
                "launches": (long[0][name] - short[0][name]) / steps,
                "us": (long[1][name] - short[1][name]) / steps,
            }
            for name in long[0]
        }
        step_us = statistics.median(
            (b.seconds - a.seconds) * 1e6 / (b.steps - a.steps) for a, b in pairs
        )
        busy_us = sum(each["us"] for each in kernels.values())
        return {
            "step_us": step_us,
            "busy_us": busy_us,
            "between_us": step_us - busy_us,
            "launches": sum(each["launches"] for each in kernels.values()),
            "kernels": dict(sorted(kernels.items(), key=lambda item: -item[1]["us"])),
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
