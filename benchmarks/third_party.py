"""Load generators of others, unchanged, against `stepweave serve` with the embedded model.

aiperf and guidellm each get an environment of their own (1.2 and 1.5 GB, made once). Both load one
server with 1, 4 and 16 streams of random prompts, and replay a short trace in the form that they
read: Mooncake's with shared prefixes, and Azure's. A run in which a request failed, or had
another number of output tokens than it asked for, counts for nothing. Beside the figures, the
tables are saved as the programs print them. Load and server share the machine's cores, and whatever
else ran there: the result has the load average, before and after.

    python -m benchmarks.third_party [--requests 48] [--environments build/third_party]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from stepweave.loadgen.started import started
from stepweave.models.source import resolve

from .paired import at_least_one, save

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
STREAMS = (1, 4, 16)
PROMPT, OUTPUT = 64, 48  # tokens
BLOCK = 64  # tokens that one hash id of the trace stands for
TRACE = tuple((index / 4, 1 + index % 3, 16 + 8 * (index % 3)) for index in range(9))
"""When each request comes, in seconds, the blocks of its prompt, and its output tokens.

Nine: from ten on aiperf decodes prompts in a pool of processes, which broke where this was written.
"""


@dataclass(frozen=True)
class Load:
    """What one run asks: requests by so many streams, or the trace."""

    url: str
    requests: int
    streams: int | None

    @property
    def name(self) -> str:
        if self.streams is None:
            return "trace"
        return "1 stream" if self.streams == 1 else f"{self.streams} streams"


@dataclass(frozen=True)
class Program:
    """A load generator: how to install and call it, and where it leaves its figures.

    `installs`: the arguments of each `pip install`. `command` and `found` work in a folder of the
    run, `tables` also with what the program printed. `offline`: it is kept from asking a hub.
    `uncounted`: so many of a trace's last requests may lack in its figures.
    """

    name: str
    version: str
    installs: tuple[tuple[str, ...], ...]
    command: Callable[[Load], list[str]]
    found: Callable[[Path], dict[str, float]]
    tables: Callable[[Path, str], str]
    offline: bool
    uncounted: int = 0

    def environment(self, parent: Path) -> Path:
        """The `bin` of its environment, made if it is not there."""
        folder = parent / f"{self.name}-{self.version}"
        done = folder / "complete"
        if not done.exists():
            print(f"installing {self.name} {self.version} into {folder}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            for arguments in self.installs:
                pip = str(folder / "bin" / "pip")
                subprocess.run([pip, "install", "-q", *arguments], check=True, cwd=ROOT)
            done.touch()
        return folder / "bin"


def aiperf_command(load: Load) -> list[str]:
    own = (
        f"--concurrency {load.streams} --request-count {load.requests} "
        f"--warmup-request-count {load.streams} --isl {PROMPT} --osl {OUTPUT}"
        if load.streams is not None
        else "--custom-dataset-type mooncake_trace --input-file mooncake.jsonl --fixed-schedule "
        f"--isl-block-size {BLOCK}"
    )
    shared = (
        f"aiperf profile --model embedded --url {load.url} --endpoint-type chat --streaming "
        "--tokenizer tokenizer --use-server-token-count --extra-inputs ignore_eos:true "
        "--random-seed 1 --ui none --no-gpu-telemetry --artifact-dir out"
    )
    return [*shared.split(), *own.split()]


def aiperf_found(folder: Path) -> dict[str, float]:
    said = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    first, between = said["time_to_first_token"], said["inter_token_latency"]
    return {
        "requests": said["request_count"]["avg"],
        "failed": said["completed_request_count"]["avg"] - said["request_count"]["avg"],
        "output_tokens": said["total_usage_completion_tokens"]["avg"],
        "output_tokens_per_s": said["output_token_throughput"]["avg"],
        "ttft_ms_p50": first["p50"],
        "ttft_ms_p99": first["p99"],
        "itl_ms_p50": between["p50"],
        "itl_ms_p99": between["p99"],
    }


def aiperf_tables(folder: Path, _printed: str) -> str:
    return (folder / "out" / "profile_export_console.txt").read_text(encoding="utf-8")


def guidellm_command(load: Load) -> list[str]:
    data: dict[str, Any]
    if load.streams is not None:
        profile = f"kind=concurrent,streams={load.streams}"
        data = {"kind": "synthetic_text", "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
        until = ["--constraint", f"kind=max_requests,count={load.requests}"]
    else:
        profile = "kind=replay"
        data = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": "azure.jsonl"}}
        until = []
    shared = (
        f"guidellm run --backend kind=openai_http,target={load.url} --profile {profile} "
        "--tokenizer kind=huggingface_auto,model=tokenizer --output kind=json,path=out.json "
        "--disable-progress"
    )
    return [*shared.split(), "--data", json.dumps(data), *until]


def guidellm_found(folder: Path) -> dict[str, float]:
    [run] = json.loads((folder / "out.json").read_text())["benchmarks"]
    metrics = run["metrics"]
    counts = metrics["request_totals"]
    first, between = (
        metrics[name]["successful"]["percentiles"]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return {
        "requests": counts["successful"],
        "failed": counts["errored"] + counts["incomplete"],
        "output_tokens": metrics["output_token_count"]["successful"]["total_sum"],
        "output_tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
        "ttft_ms_p50": first["p50"],
        "ttft_ms_p99": first["p99"],
        "itl_ms_p50": between["p50"],
        "itl_ms_p99": between["p99"],
    }


def guidellm_tables(_folder: Path, printed: str) -> str:
    return printed[printed.index("ℹ Run Summary") : printed.index("✔ Benchmarking complete")]


PROGRAMS = (
    Program(
        "aiperf",
        "0.13.0",
        (("aiperf==0.13.0",),),
        aiperf_command,
        aiperf_found,
        aiperf_tables,
        offline=False,  # it would not take a folder as the tokenizer
    ),
    Program(
        "guidellm",
        "0.8.1",
        # torch first: guidellm would bring one for GPUs, of 6 GB.
        (("-c", "constraints.txt", "torch"), ("-c", "constraints.txt", "guidellm==0.8.1")),
        guidellm_command,
        guidellm_found,
        guidellm_tables,
        offline=True,
        uncounted=1,  # a replay ends when the last answer has come, often before it is counted
    ),
)


def prepare(folder: Path) -> None:
    """The files that a run reads: the model's tokenizer, and the trace in both forms."""
    source = Path(resolve("embedded"))
    (folder / "tokenizer").mkdir()
    for each in source.glob("*.json"):
        shutil.copy(each, folder / "tokenizer")
    mooncake, azure = [], []
    for index, (at_s, blocks, output) in enumerate(TRACE):
        length = {"input_length": BLOCK * blocks, "output_length": output}
        own = [100 * index + block for block in range(1, blocks)]
        mooncake.append({"timestamp": 1000 * at_s, **length, "hash_ids": [0, *own]})
        azure.append({"timestamp": at_s, **length})
    for name, lines in (("mooncake", mooncake), ("azure", azure)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)


def run(program: Program, programs: Path, load: Load) -> tuple[dict[str, float], str]:
    """The figures of one run, and its tables. Raises `RuntimeError` where it counts for nothing."""
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"COLUMNS": "150"} | ({"HF_HUB_OFFLINE": "1"} if program.offline else {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        command, *arguments = program.command(load)
        done = subprocess.run(
            [programs / command, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program.name}, {load.name}: {done.stdout}{done.stderr}")
        figures = program.found(folder)
        tables = program.tables(folder, done.stdout)
    check(program, load, figures)
    return figures, tables


def check(program: Program, load: Load, figures: Mapping[str, float]) -> None:
    if load.streams is not None:
        allowed = [(load.requests, 0, load.requests * OUTPUT)]
    else:
        outputs = [output for _, _, output in TRACE]
        counts = range(len(TRACE) - program.uncounted, len(TRACE) + 1)
        allowed = [(count, 0, sum(outputs[:count])) for count in counts]
    got = tuple(figures[key] for key in ("requests", "failed", "output_tokens"))
    if got not in allowed:
        names = "requests, failed ones and output tokens"
        raise RuntimeError(f"{program.name}, {load.name}: {names} are {got}, not {allowed}")


def warm(url: str) -> None:
    """A few requests that nobody counts."""
    body = {"prompt": "Write a short story.", "max_tokens": OUTPUT, "ignore_eos": True}
    data = json.dumps(body).encode()
    for _ in range(4):
        asked = urllib.request.Request(
            f"{url}/v1/completions", data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            answer.read()


def measure(
    environments: Mapping[str, Path], url: str, requests: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """The figures by program and load, and each program's tables."""
    warm(url)
    figures: dict[str, Any] = {}
    tables: dict[str, str] = {}
    for program in PROGRAMS:
        figures[program.name] = {"version": program.version}
        tables[program.name] = f"{program.name} {program.version}, {date.today().isoformat()}\n"
        for streams in (*STREAMS, None):
            load = Load(url, requests, streams)
            found, table = run(program, environments[program.name], load)
            figures[program.name][load.name] = found
            tables[program.name] += f"\n== {load.name}\n\n{table.strip()}\n"
            print(f"{program.name}, {load.name}: {found}", flush=True)
    return figures, tables


async def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=at_least_one, default=48)
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "third_party")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    environments = {
        program.name: program.environment(asked.environments.resolve()) for program in PROGRAMS
    }
    before = os.getloadavg()
    command = [sys.executable, "-m", "stepweave", "serve", "quickstart", "--port", "0"]
    async with started(command, "quickstart") as url:
        figures, tables = await asyncio.to_thread(measure, environments, url, asked.requests)
    for name, text in tables.items():
        path = asked.output / f"third_party_{name}.txt"
        plain = "\n".join(line.rstrip() for line in text.splitlines())
        path.write_text(plain + "\n", encoding="utf-8")
    busy = {"before": before, "after": os.getloadavg()}
    result = {"pipeline": "quickstart", "load_average": busy, "programs": figures}
    save("third_party", result, asked.output / "third_party.json")


if __name__ == "__main__":
    asyncio.run(main())
