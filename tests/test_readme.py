"""Every row of every table of the README is read, and compared with what it claims to say.

A row that nothing here knows fails: a new claim brings its check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stepweave.backends.executor_names import executor_names
from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.load import load_config, shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.testing.exploring.campaign import campaign
from tests.graph.shipped_plans import EXTENDED, GRAPHS, shipped_plan
from tests.serving.test_matrix import AXES
from tests.testing.test_faults import NIGHTLY

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


# --- pipelines ----------------------------------------------------------------------------------

DRAFTERS = {
    "": None,
    "a smaller model": "draft_model",
    "EAGLE head": "eagle",
    "EAGLE-3 head": "eagle3",
    "prompt look-up": "ngram",
    "MTP module": "mtp",
    "Medusa heads": "medusa",
    "suffix decoding": "suffix",
}


def test_the_table_of_pipelines_is_what_ships() -> None:
    table = {cells[0].strip("`"): cells[1:] for cells in rows("Pipelines")}
    assert sorted(table) == sorted(shipped())
    for name, (depth, speculation, grammars, about) in table.items():
        config = load_config(name)
        if isinstance(config, AbstractGraph):
            assert about.startswith("a graph without code")
            continue
        assert int(depth) == config.depth, name
        drafter = config.nodes["draft"].kind if "draft" in config.nodes else None
        assert DRAFTERS[speculation] == drafter, name
        assert (grammars == "yes") == (config.grammars is not None), name
        assert ("prompts" in about) == bool(config.prompts), name


def test_every_pipeline_with_code_takes_the_settings_that_the_text_names() -> None:
    said = re.search(
        r"All but graphs without code take `--set executor=(\S+)` and `--set depth=([\d|]+)`",
        README,
    )
    assert said is not None
    executors, depths = said[1].split("|"), said[2].split("|")
    assert set(executors) == set(executor_names())
    assert {cells[0].strip("`") for cells in rows("Pipelines")[-len(GRAPHS) :]} == set(GRAPHS)
    for name in shipped():
        if name in GRAPHS:
            continue
        for number in range(max(len(depths), len(executors))):
            depth, executor = depths[number % len(depths)], executors[number % len(executors)]
            config = load_config(name, {"depth": depth, "executor": executor})
            assert isinstance(config, PipelineConfig)
            assert (config.depth, config.executor) == (int(depth), executor)


# --- figures ------------------------------------------------------------------------------------


def times(number: float, places: int = 2) -> str:
    return f"{number:.{places}f}"


def compile_time() -> str:
    found = result("compile_time")["pipelines"]["quickstart"]
    return f"{found['keep_ms']['median']:.1f} ms / {found['search_ms']['median']:.0f} ms"


def interpreter() -> str:
    def span(executor: str) -> str:
        found = result("interpreter")["results"]
        extra = [round(each["extra_us"][0]) for each in found if each["executor"] == executor]
        few, many = min(extra), max(extra)
        return f"{few} µs" if few == many else f"{few} to {many} µs"

    return f"{span('serial')} serial, {span('threads')} on threads"


def longest_gap() -> str:
    found = result("neighbours")["auto"].values()
    return f"{max(each['longest_ms'] for each in found):.0f} ms"


def spread(key: str) -> str:
    found = result("overlap")[key]
    middle, low, high = (times(found[each]) for each in ("median", "low", "high"))
    return f"{middle} (quartiles {low} and {high})"


def of_best_fixed(policy: str) -> str:
    found = result("draft_length")
    shares = (found[f"{rows} rows"][policy]["of_best_fixed"] for rows in (1, 4, 16))
    return " / ".join(times(share["median"]) for share in shares)


def first_token() -> str:
    found = result("ttft")["real"]["by_load"]
    mine = (each for each in found if each["side"] == "depth 2, just in time")
    return " / ".join(times(each["over_synchronous"]["mean"]["median"]) for each in mine)


def slower(side: str) -> str:
    return f"{times(result('peers')['sides'][side]['slower_by']['median'])} times as long"


def sides() -> Any:
    return result("speculation_1")["sides"]


def faster(side: str, places: int = 2) -> str:
    return times(sides()[side]["faster_than_none"]["median"], places)


FOUR = ("EAGLE-3", "n-gram", "EAGLE", "draft model")


def grammar_on() -> str:
    found = [
        each["speed_of_grammar_off"]["median"]
        for name, each in sides().items()
        if name.endswith(", grammar")
    ]
    return f"{times(median(found))} ({times(min(found))} to {times(max(found))})"


def steady(pipeline: str) -> str:
    found = result("steady")["requests"].values()
    return (
        f"{' / '.join(times(each[pipeline]['faster']['median']) for each in found)} times as fast"
    )


THEIR_WAYS = ("EAGLE-3", "draft model", "n-gram")


def over_theirs(engine: str) -> str:
    found = [sides()[f"{way}, {engine}"]["faster_than_theirs"]["median"] for way in THEIR_WAYS]
    return f"{' / '.join(map(times, found))} times as fast"


def peer(
    dtype: str, opponent: str, *batches: int, model: str = "smollm2-135m", prompt: int = 64
) -> str:
    """Its time over ours for so many prompts at a time, each of so many tokens."""
    cells = result("peers_models")["cells"]
    found = [cells[f"{model}/{dtype}/b{rows}/p{prompt}/{opponent}"] for rows in batches]
    medians = " / ".join(times(each["theirs_over_ours"]["median"]) for each in found)
    return f"{medians} times as long as ours"


def first_draft() -> str:
    """Of the table in the training notes, which `training/eagle.py` prints."""
    notes = (ROOT / "training" / "README.md").read_text(encoding="utf-8")
    table = notes.partition("| EAGLE-3 | 1st |")[2].partition("\n\n")[0]
    every = re.search(r"\| all \| ([\d.]+) %", table)
    assert every is not None
    return f"{float(every[1]):.0f} %"


def over_their_server(figure: str) -> str:
    streams = result("serving_smol_135m")["models"]["smol-135m"]
    every = [streams[n]["async"]["times_theirs"][figure]["median"] for n in ("1", "4", "16")]
    return " / ".join(map(times, every))


@cache
def mutants() -> str:
    """Found by both oracles, of those that are not provably harmless."""
    plans = map(shipped_plan, (name for name in shipped() if name not in EXTENDED))
    tallies = [tally for plan in plans for tally in campaign(plan).tallies.values()]
    return f"{sum(each.killed for each in tallies)} of {sum(each.total for each in tallies)}"


CLAIMS: dict[str, Callable[[], str]] = {
    "compile and prove `quickstart`": compile_time,
    "executing a plan over a hand-written loop": interpreter,
    "longest time between two steps of a request": longest_gap,
    "16 grammars over 82,000 tokens": lambda: (
        f"{times(result('overlap')['speed_ratio']['median'])} times faster"
    ),
    "… share of the hideable host work": lambda: spread("hidden"),
    "… predicted against measured period": lambda: spread("predicted_over_measured_period"),
    "embedded model: 200 extractions": lambda: result("embedded")["extractions_exact"].removesuffix(
        "/200"
    ),
    "… drafts accepted, k = 3": lambda: f"{result('embedded')['acceptance'] * 100:.0f} %",
    "embedded model, 16 mixed prompts": lambda: slower("transformers generate_batch"),
    "… `generate`, one prompt at a time": lambda: slower("transformers generate, one by one"),
    "… `generate`, one batch padded": lambda: slower("transformers generate, padded batch"),
    "… ours without invariant arithmetic": lambda: slower("the same, arithmetic not invariant"),
    "decode steps alone, 1 / 16 requests": lambda: steady("synchronous"),
    "… with `async`": lambda: steady("async"),
    "one request at a time, equal tokens": lambda: f"{' / '.join(map(faster, FOUR))} times faster",
    "… forwards of the target per token": lambda: " / ".join(
        times(sides()[side]["forwards_per_token"]) for side in FOUR
    ),
    "… first draft of the shipped EAGLE-3 head": first_draft,
    "… grammar on, of the speed without": grammar_on,
    "… our EAGLE-3 / draft model / look-up over": lambda: over_theirs("as transformers computes"),
    "… the same, pipelined": lambda: over_theirs("without invariant arithmetic"),
    "draft lengths that adapt": lambda: of_best_fixed("by_rows"),
    "… `fastest`": lambda: of_best_fixed("fastest"),
    "mean time to the first token": first_token,
    "SmolLM2-135M's shape, float32": lambda: peer("float32", "generate", 1, 4, 16),
    "… with 1,024 tokens of prompt": lambda: peer("float32", "generate", 1, 4, prompt=1024),
    "… in bfloat16, 1 / 4": lambda: peer("bfloat16", "generate", 1, 4, 16),
    "… llama.cpp, float32, 1 / 4": lambda: peer("float32", "llama_cpp", 1, 4),
    "… OpenVINO GenAI, float32, 1 / 4": lambda: peer("float32", "openvino", 1, 4),
    "Qwen3-0.6B's shape": lambda: peer("float32", "generate", 1, 4, 16, model="qwen3-0.6b"),
    "… the same shape, both in bfloat16": lambda: peer(
        "bfloat16", "generate", 1, 4, 16, model="qwen3-0.6b"
    ),
    "Llama-1B's shape": lambda: peer("float32", "generate", 1, 4, model="llama-1b"),
    "… this shape, both in bfloat16": lambda: peer("bfloat16", "generate", 1, 4, model="llama-1b"),
    "SmolLM-135M's shape": lambda: (
        f"{over_their_server('output_throughput')} times the tokens per second"
    ),
    "… median time between two tokens": lambda: f"{over_their_server('median_itl_ms')} of theirs",
    "… the longest hundredth of these times": lambda: (
        f"{over_their_server('p99_itl_ms')} of theirs"
    ),
}
COUNTED = {
    "16,200 combinations": lambda: prod(map(len, AXES)),
    "10,000 runs under random faults": lambda: NIGHTLY,
}
MUTANTS = f"mutants of the {len(shipped()) - len(EXTENDED)} shipped plans without rates or modes"


@pytest.mark.parametrize("cells", rows("Measured"), ids=lambda cells: cells[0][:40])
def test_every_figure_is_that_of_the_results(cells: list[str]) -> None:
    what, figure = cells
    known = [key for key in (*CLAIMS, *COUNTED, MUTANTS) if what.startswith(key)]
    assert len(known) == 1, f"nothing checks {what!r}"
    if known[0] in CLAIMS:
        assert figure == CLAIMS[known[0]]()
    elif known[0] in COUNTED:
        assert f"{COUNTED[known[0]]():,}" in what
    else:
        assert re.fullmatch(r"(\d+) of \1", figure)


@pytest.mark.nightly
def test_as_many_mutants_are_found_as_the_readme_says() -> None:
    figure = next(figure for what, figure in rows("Measured") if what.startswith(MUTANTS))
    assert figure == mutants()
