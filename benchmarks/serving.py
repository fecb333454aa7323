"""`stepweave serve` against `transformers serve --continuous-batching`, as a client sees them.

The servers run at the same time, and are loaded in turn: chats with greedy answers at each number
of streams, by the load generator of `stepweave bench serve`, in a process of its own. float32 on
the CPU, and the same number of threads in torch on all sides. The models are the embedded one,
and one of SmolLM-135M's shape with random weights, which is written to a temporary folder.

    pip install 'transformers[serving]'
    python -m benchmarks.serving [--rounds 5] [--ours 'async model.invariant=false']
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from aiohttp import ClientError, ClientSession
from transformers import LlamaConfig, LlamaForCausalLM

from stepweave.configs.prompts import PromptLine
from stepweave.loadgen.client import Target
from stepweave.loadgen.load import Load
from stepweave.loadgen.served import serve_bench
from stepweave.loadgen.session import Session
from stepweave.loadgen.workload import GivenPrompts
from stepweave.models.source import resolve

from .paired import Spread, at_least_one, save

THEIRS = "transformers"
OURS = ("quickstart", "async", "synchronous model.invariant=false")  # configs, and their changes
MODELS = {"embedded": 1, "smol-135m": 2}  # and how many threads torch has on all sides
NAMES = ("Nora", "Ida", "Max", "Lena", "Ben", "Rosa", "Eli", "Mia")
ANIMALS = ("fox", "owl", "bear", "hare", "otter", "crow", "mole", "lynx")
ROWS, BUDGET, BLOCK, BLOCKS = 16, 256, 16, 512
FIGURES = ("output_throughput", "median_ttft_ms", "median_itl_ms", "p99_itl_ms")
STARTING_S = 300.0

_TRANSFORMERS = "from transformers.cli.transformers import main; main()"


def write_random_model(directory: Path) -> None:
    """SmolLM-135M's shape, and the embedded tokenizer with words of no meaning added to it."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    embedded = Path(resolve("embedded"))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, json.loads((embedded / "config.json").read_text()).get(name))
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.save_pretrained(directory)
    for file in embedded.glob("*token*"):
        shutil.copy(file, directory)
    for file in embedded.glob("chat_template*"):
        shutil.copy(file, directory)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(each["id"] for each in tokenizer["added_tokens"])}
    vocabulary |= {f"Ġword{id}": id for id in range(config.vocab_size) if id not in taken}
    path.write_text(json.dumps(tokenizer))


def command(side: str, model: str, directory: Path, port: int) -> list[str]:
    """What starts a server of that model; our own calls it by its directory too."""
    if side == THEIRS:
        sizes = {"block-size": BLOCK, "num-blocks": BLOCKS, "max-batch-tokens": BUDGET}
        sized = [part for key, value in sizes.items() for part in (f"--cb-{key}", f"{value}")]
        serve = ["serve", f"{directory}", "--continuous-batching", "--port", f"{port}"]
        plain = ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
        return [sys.executable, "-c", _TRANSFORMERS, *serve, *plain, *sized]
    config, *changes = side.split()
    sizes = {"max_rows": ROWS, "token_budget": BUDGET, "block_size": BLOCK, "num_blocks": BLOCKS}
    changes += [f"scheduler.{key}={value}" for key, value in sizes.items()]
    changes.append(f"torch_threads={MODELS[model]}")
    loaded = "embedded" if model == "embedded" else f"{directory}"
    names = ["--model", loaded, "--served-model-name", f"{directory}", "--port", f"{port}"]
    changed = [part for each in changes for part in ("--set", each)]
    quiet = ["--log-level", "error"]
    return [sys.executable, "-m", "stepweave", "serve", config, *names, *quiet, *changed]


@asynccontextmanager
async def server(side: str, model: str, directory: Path) -> AsyncIterator[Target]:
    """A server that answers, for as long as the block lasts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = {"OMP_NUM_THREADS": f"{MODELS[model]}", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *command(side, model, directory, port),
            stdout=said,
            stderr=said,
            env={**os.environ, **threads},
        )
        try:
            root = f"http://127.0.0.1:{port}"
            if not await _answers(root, process):
                said.seek(0)
                raise SystemExit(f"{side} did not start:\n{said.read().decode()[-2000:]}")
            yield Target(root)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
                await asyncio.wait_for(process.wait(), 60)


async def _answers(root: str, process: asyncio.subprocess.Process) -> bool:
    async with ClientSession() as session, asyncio.timeout(STARTING_S):
        while process.returncode is None:
            with suppress(ClientError):
                async with session.get(f"{root}/health") as answer:
                    if answer.status == 200:
                        return True
            await asyncio.sleep(0.2)
    return False


def load(streams: int, requests: int, tokens: int) -> Load:
    """Chats, so many at a time; each prompt is another."""
    asks = [f"Write a short story about a {a} named {n}." for a in ANIMALS for n in NAMES]
    lines = [PromptLine.model_validate({"prompt": each, "temperature": 0.0}) for each in asks]
    count = requests * streams
    return Load(GivenPrompts(lines, tokens), count, limit=streams, warm_up=streams)


Figures = dict[str, list[dict[str, Any]]]
"""What each round came to, by side."""


async def measured(
    sides: Sequence[str], model: str, directory: Path, given: argparse.Namespace
) -> dict[int, Figures]:
    """The figures of all rounds, by the number of streams."""
    found: dict[int, Figures] = {n: {side: [] for side in sides} for n in given.streams}
    async with AsyncExitStack() as running:
        targets = {
            side: await running.enter_async_context(server(side, model, directory))
            for side in sides
        }
        for turn in range(given.rounds):
            for streams, by_side in found.items():
                for side in sides if turn % 2 == 0 else reversed(sides):
                    asked = load(streams, given.requests, given.tokens)
                    result = await serve_bench(Session(), targets[side], f"{directory}", asked)
                    if result.summary.failed:
                        raise SystemExit(f"{side}: {dict(result.summary.errors)}")
                    by_side[side].append(result.summary.to_json())
    return found


def told(by_side: Figures) -> dict[str, Any]:
    """Medians of each side, and how many times theirs ours are: medians of paired ratios."""
    said: dict[str, Any] = {}
    theirs = by_side.get(THEIRS, ())
    for side, figures in by_side.items():
        said[side] = {key: Spread.of([each[key] for each in figures]).median for key in FIGURES}
        said[side]["output_tokens"] = sum(each["total_output_tokens"] for each in figures)
        if side != THEIRS and theirs:
            pairs = list(zip(figures, theirs, strict=True))
            said[side]["times_theirs"] = {
                key: vars(Spread.of([a[key] / b[key] for a, b in pairs]))
                for key in FIGURES
                if all(b[key] for _, b in pairs)
            }
    return said


def show(model: str, streams: str, said: Mapping[str, Any]) -> None:
    """A line for each side, with its ratios in brackets."""
    for side, figures in said.items():
        shown = [f"{model:10}{streams:>3} streams  {side:34}"]
        ratios = figures.get("times_theirs", {})
        for key in FIGURES:
            ratio = f" (x {ratios[key]['median']:.2f})" if key in ratios else ""
            shown.append(
                f"{key.replace('output_throughput', 'tokens/s')} {figures[key]:.1f}{ratio}"
            )
        print("  ".join(shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--streams", type=at_least_one, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=at_least_one, default=2, help="of each stream")
    parser.add_argument("--tokens", type=at_least_one, default=96)
    parser.add_argument("--models", choices=[*MODELS], nargs="+", default=[*MODELS])
    parser.add_argument("--ours", nargs="*", default=[*OURS], metavar="'CONFIG KEY=VALUE …'")
    parser.add_argument("--alone", action="store_true", help=f"without {THEIRS}")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not given.alone and find_spec("accelerate") is None:
        parser.error("transformers serve needs more: pip install 'transformers[serving]'")
    table: dict[str, Any] = {}
    for model in given.models:
        sides = [each for each in given.ours if model == "embedded" or each != "quickstart"]
        sides += [] if given.alone else [THEIRS]
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(resolve("embedded") if model == "embedded" else folder)
            if model != "embedded":
                write_random_model(directory)
            found = asyncio.run(measured(sides, model, directory, given))
        table[model] = {f"{streams}": told(by_side) for streams, by_side in found.items()}
        for streams, said in table[model].items():
            show(model, streams, said)
    asked = {key: getattr(given, key) for key in ("rounds", "requests", "tokens")}
    save("serving", {**asked, "load_average": os.getloadavg()[0], "models": table}, given.json)


if __name__ == "__main__":
    main()
