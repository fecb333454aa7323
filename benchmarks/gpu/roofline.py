"""Decoding against what the memory allows, and against `generate` and `generate_batch`.

A Llama-shaped model with random weights in bfloat16. A step has to read the weights (the embedding
table apart) and the keys and values of its rows; by the *measured* bandwidth of a copy that gives
the floor of a step, and the share of it that a side reaches. Ours: eager, with CUDA graphs, and
with graphs on a model whose layers are compiled and whose projections are merged. transformers:
`generate` as it comes, with a static cache and torch.compile (for batches up to `--static-up-to`,
since each takes a minute to compile), and `generate_batch` with the options that are in the result.
Time per step is taken between tokens, prompts left out.

In bfloat16 two implementations differ in the last bits, and greedy tokens with them where two
logits are near. So the first difference of each side is reported, and how far apart its two tokens
are in the logits of one plain pass over the text before it: a side is *equal within tolerance* if
that gap is at most 2⁻⁵ of the largest logit for bfloat16, 10⁻⁴ for float32. (Logits of a random
model of 16 layers in bfloat16 are off by 0.5 % of the largest in the root mean square, measured
against float32. So in two implementations the distance of two of them differs by 1.1 %; 2⁻⁵ is
three times that. A wrong token lies about as far away as the largest logit.)

    python -m benchmarks.gpu.roofline [--models 1b 8b] [--batch 1 8 32 128] [--toy]
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from stepweave.executors.run import Executor
from stepweave.models.causal_lm import CausalLM
from stepweave.requests.request import Request
from stepweave.serving.engine import Engine

from ..paired import at_least_one
from .networks import EOS, SIZES, TOY, Size, random_model, served, twin
from .session import Session, alternate, begin, spread
from .workbench import BLOCK, Pipeline, engine, forget_counts, replayed, request, serve

FIRST = 4  # tokens that do not count: the first steps of a shape
TOLERANCE = {torch.bfloat16: 2.0**-5, torch.float32: 1e-4}
Ids = list[list[int]]
_CONFIG: Any = GenerationConfig
_EVENT: Any = torch.cuda.Event


@dataclass(frozen=True)
class Decoded:
    """One run of one side."""

    step_s: float
    tokens: Ids


@dataclass
class Side:
    """One way to decode, and what has to be said of it."""

    run: Callable[[], Decoded]
    about: str = ""
    executor: object | None = None


class Clock(StoppingCriteria):
    """Stops nothing: it notes when `generate` has its next token."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.times: list[float] = []
        self._synchronize = synchronize

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> torch.Tensor:
        self._synchronize()  # `generate` asks the device after each step anyway
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def bandwidth(device: torch.device) -> float:
    """Bytes per second of a copy, read and written: the best of several sizes."""
    if device.type == "cpu":
        return _copied(device, 1 << 24)
    return max(_copied(device, 1 << power) for power in (28, 30, 32))


def _copied(device: torch.device, size: int) -> float:
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        if device.type == "cpu":
            began = perf_counter()
            target.copy_(source)
            times.append(perf_counter() - began)
            continue
        start, end = (_EVENT(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return 2 * size / statistics.median(times[2:])


@dataclass(frozen=True)
class Work:
    """The same prompts for all sides; every row decodes `tokens` tokens."""

    size: Size
    batch: int
    prompt: int
    tokens: int

    def prompts(self) -> Ids:
        generator = torch.Generator().manual_seed(self.batch)
        ids = torch.randint(1, self.size.vocab, (self.batch, self.prompt), generator=generator)
        found: Ids = ids.tolist()
        return found

    def requests(self) -> list[Request]:
        return [
            request(uid, prompt, self.tokens, self.size.vocab)
            for uid, prompt in enumerate(self.prompts())
        ]

    def engine(self, model: CausalLM, executor: Executor, *, graphs: bool) -> Engine:
        """With room for all of it at once, two steps in flight."""
        return engine(
            Pipeline(depth=2),
            model,
            executor,
            rows=self.batch,
            context=self.prompt + self.tokens + BLOCK,
            budget=min(8192, max(256, self.batch * self.prompt)),
            graphs=graphs,
        )

    def floor_s(self, bytes_per_s: float, item: int) -> float:
        """Of a step in the middle of the run."""
        context = self.prompt + self.tokens // 2
        cache = self.batch * context * self.size.cache_bytes(item)
        return (self.size.weight_bytes(item) + cache) / bytes_per_s


def ours(session: Session, model: CausalLM, work: Work, *, graphs: bool, about: str) -> Side:
    executor = session.executor(graphs=graphs)
    made = work.engine(model, executor, graphs=graphs)

    def run() -> Decoded:
        served = serve(made, work.requests())
        # From when the last row decodes: before that, steps compute prompts too.
        begun = max(times[min(FIRST, len(times) - 2)][0] for times in served.settled)
        times = [[at for at, _ in row if at >= begun] for row in served.settled]
        steps = [(row[-1] - row[0]) / (len(row) - 1) for row in times if len(row) > 1]
        return Decoded(statistics.median(steps), served.tokens)

    return Side(run, about, executor)


def generate(session: Session, model: Any, work: Work, *, static: bool) -> Side:
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}
    config = _CONFIG(
        do_sample=False,
        max_new_tokens=work.tokens,
        min_new_tokens=None,
        eos_token_id=None,
        pad_token_id=EOS,
        bos_token_id=None,
        **options,
    )
    ids = torch.tensor(work.prompts(), device=session.device)

    def run() -> Decoded:
        clock = Clock(session.synchronize)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        times = clock.times[FIRST:]
        return Decoded((times[-1] - times[0]) / (len(times) - 1), out[:, work.prompt :].tolist())

    how = "static cache, its forward compiled by generate" if static else "dynamic cache, eager"
    return Side(run, how)


def generate_batch(session: Session, model: Any, work: Work) -> Side:
    """Time per step by the library's own time stamps of tokens."""
    wanted: dict[str, Any] = {
        "use_cuda_graph": not session.toy,
        "use_async_batching": not session.toy,
        "max_batch_tokens": max(256, work.batch * work.prompt),
    }
    known = inspect.signature(ContinuousBatchingConfig).parameters
    page = 256 if not session.toy else 16
    wanted["page_size" if "page_size" in known else "block_size"] = page
    wanted["num_blocks"] = work.batch * -(-(work.prompt + work.tokens) // page) + 8
    wanted = {name: value for name, value in wanted.items() if name in known}

    config = _CONFIG(
        do_sample=False,
        max_new_tokens=work.tokens,
        eos_token_id=-1,
        pad_token_id=EOS,
        bos_token_id=None,
    )

    def run() -> Decoded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model.generate_batch(
                work.prompts(),
                generation_config=config,
                continuous_batching_config=ContinuousBatchingConfig(**wanted),
                record_timestamps=True,
                progress_bar=False,
            )
        rows = sorted(found.items(), key=lambda item: int(item[0].rsplit("_", 1)[1]))
        failed = next((row.error for _, row in rows if row.error), None)
        if failed is not None:
            raise RuntimeError(failed)
        times = [row.timestamps[FIRST:] for _, row in rows]
        steps = [(at[-1] - at[0]) / (len(at) - 1) for at in times]
        return Decoded(statistics.median(steps), [list(row.generated_tokens) for _, row in rows])

    return Side(run, f"options {wanted}, attention {model.config._attn_implementation}")


def compare(
    expected: Ids, found: Ids, prompts: Ids, plain: Any, dtype: torch.dtype
) -> dict[str, Any]:
    """Where tokens differ first, and whether by more than rounding."""
    different: dict[int, int] = {}
    for row, (a, b) in enumerate(zip(expected, found, strict=True)):
        if (at := next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)) is not None:  # noqa: B905
            different[row] = at
    lengths_equal = [len(row) for row in expected] == [len(row) for row in found]
    held: dict[str, Any] = {
        "rows": len(expected),
        "rows_equal": len(expected) - len(different),
        "first_difference": min(different.values(), default=None),
    }
    gaps = []
    for row in sorted(different, key=lambda row: different[row])[:4]:
        at = different[row]
        text = torch.tensor([prompts[row] + expected[row][:at]], device=plain.device)
        with torch.inference_mode():
            logits = plain(input_ids=text, use_cache=False, logits_to_keep=1).logits[0, -1].float()
        gap = (logits[expected[row][at]] - logits[found[row][at]]).abs() / logits.abs().max()
        gaps.append(float(gap))
    held["relative_gaps"] = gaps
    held["equal_within_tolerance"] = lengths_equal and all(gap <= TOLERANCE[dtype] for gap in gaps)
    return held


def sides_of(
    session: Session,
    model: CausalLM,
    compiled: CausalLM | None,
    peer: PreTrainedModel,
    work: Work,
    peers: Sequence[str],
) -> dict[str, Side]:
    found = {
        "ours, eager": ours(session, model, work, graphs=False, about="CUDA streams, depth 2"),
        "ours, graphs": ours(session, model, work, graphs=True, about="and CUDA graphs"),
    }
    if compiled is not None:
        about = "and layers compiled, projections merged"
        found["ours, graphs, compiled"] = ours(session, compiled, work, graphs=True, about=about)
    if "generate" in peers:
        found["generate"] = generate(session, peer, work, static=False)
    if "static" in peers and work.batch <= session.options.static_up_to:
        found["generate, static, compiled"] = generate(session, peer, work, static=True)
    if "batch" in peers:
        found["generate_batch"] = generate_batch(session, peer, work)
    return found


def measure_batch(
    session: Session, sides: dict[str, Side], work: Work, plain: Any, until: float, floor_s: float
) -> dict[str, Any]:
    failed: dict[str, str] = {}
    last: dict[str, Decoded] = {}
    for name, side in list(sides.items()):
        try:
            for _ in range(1 if session.toy else 3):  # compiles, notes shapes, captures
                last[name] = side.run()
        except Exception as error:  # a peer that does not run here is reported, not hidden
            if name.startswith("ours"):
                raise
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            del sides[name]
            continue
        forget_counts(side.executor)
    runs = alternate(
        {name: side.run for name, side in sides.items()}, rounds=session.options.rounds, until=until
    )
    expected = runs["ours, eager"][0].tokens
    table: dict[str, Any] = {}
    for name, each in runs.items():
        steps = [run.step_s for run in each]
        table[name] = {
            "about": sides[name].about,
            "step_ms": spread([step * 1e3 for step in steps]),
            "tokens_per_s": work.batch / statistics.median(steps),
            "share_of_floor": spread([floor_s / step for step in steps]),
            "tokens": compare(expected, each[0].tokens, work.prompts(), plain, session.dtype),
            "graphs": replayed(sides[name].executor),
        }
    return {"floor_ms": floor_s * 1e3, "sides": table, "failed": failed, "rounds": len(steps)}


def show(session: Session, work: Work, part: dict[str, Any]) -> None:
    session.say(
        f"{work.size.name}, batch {work.batch}, prompts of {work.prompt} tokens, {work.tokens} "
        f"decoded; floor {part['floor_ms']:.3f} ms per step; {part['rounds']} rounds"
    )
    for name, row in part["sides"].items():
        step, share = row["step_ms"], row["share_of_floor"]
        graphs = row["graphs"].get("replayed_share")
        said = f"  {name:28} {step['median']:9.3f} ms [{step['low']:.3f} … {step['high']:.3f}]"
        said += f"  {share['median']:6.1%} of the floor  {row['tokens_per_s']:9.1f} tokens/s"
        said += "" if graphs is None else f"  replayed {graphs:.1%}"
        held = row["tokens"]
        if not held["equal_within_tolerance"]:
            said += f"  TOKENS DIFFER from token {held['first_difference']} on"
        elif held["first_difference"] is not None:
            said += f"  equal within rounding, {held['rows_equal']} of {held['rows']} rows exactly"
        session.say(said)
    for name, why in part["failed"].items():
        session.say(f"  {name:28} did not run: {why}")


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    per_s = bandwidth(session.device)
    session.say(f"a copy moves {per_s / 1e12:.3f} TB/s")
    found: dict[str, Any] = {"copy_bytes_per_s": per_s, "dtype": str(session.dtype), "parts": {}}
    sizes = [TOY] if session.toy else [SIZES[name] for name in given.models]
    todo = [(size, batch) for size in sizes for batch in given.batch]
    for size in sizes:
        plain = random_model(size, session.device, session.dtype)
        peer = twin(plain, size)
        for about in (peer.generation_config, peer.config):
            about.eos_token_id = None  # as for ours: every row decodes to its last token
        model = served(twin(plain, size), compiled=False)
        compiled = served(twin(plain, size), compiled=True) if given.compile else None
        for batch in given.batch:
            if found["parts"] and session.over:
                session.say(f"{size.name}, batch {batch}: no time left")
                continue
            work = Work(size, batch, 16 if session.toy else given.prompt, given.tokens)
            sides = sides_of(session, model, compiled, peer, work, given.peers)
            number = len(found["parts"]) + 1
            floor = work.floor_s(per_s, session.dtype.itemsize)
            part = measure_batch(
                session, sides, work, plain, session.until(number / len(todo)), floor
            )
            part |= {"model": size.name, "batch": batch, "prompt": work.prompt}
            found["parts"][f"{size.name}, batch {batch}"] = part
            show(session, work, part)
            session.save(found)
            del sides
            session.release()
        del plain, peer, model, compiled
        session.release()
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=sorted(SIZES), default=["8b", "1b"])
    parser.add_argument("--batch", type=at_least_one, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--prompt", type=at_least_one, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=at_least_one, default=64, help="decoded for each row")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--static-up-to", type=int, default=8, metavar="BATCH")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=["generate", "static", "batch"],
        default=["generate", "static", "batch"],
    )
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="compile no layers of ours"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    return measure(begin("roofline", __doc__, argv, options))


if __name__ == "__main__":
    main()
