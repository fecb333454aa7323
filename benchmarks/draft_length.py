"""Draft lengths that adapt, against every fixed length, by the number of rows.

The embedded model with its EAGLE-3 head, extraction prompts with held-out words and stories,
greedy, float32, one torch thread. Policy `fastest` chooses by the periods that `stepweave profile
--drafts` prints, and by what it measures. All sides decode the same tokens, of four prompts for
each row, so that batches are full for most of the time; a round runs them one after the other, and
times of one round are compared. Two engines of one pipeline differ by up to 6 % in one process, by
where their memory lies: a side has several, and its time is their mean. Before that, policies that
measure run for some minutes. How all did in their first runs, in which shapes are recorded and
numbers are tried, is told besides.

    python -m benchmarks.draft_length [--rows 1,4,16] [--longest 5] [--prompts 16] [--rounds 9]
        [--warm 24] [--settle 16384] [--engines 2] [--sides "3 drafts,fastest"]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from stepweave import LLM
from training.corpus import EXTRACTION, examples

from .paired import Spread, at_least_one, own_process, save

PIPELINE = "async_eagle3_grammar"
SEED = 11
LIMIT = 96
PROMPTS = 4
"""For each row."""
PROFILED = 3
"""Rounds of the profile; in each, all lengths have their turn."""
STORIES = (("fox", "Ida"), ("dog", "Max"), ("cat", "Nora"), ("bear", "Rosa"))
MEASURES = ("fastest",)
"""Policies that choose by what they measure, and try numbers to measure them."""
Table = Mapping[int, Sequence[float]]
"""By number of rows: the period of a step with 1, 2, … drafts, in µs."""


def lines(count: int) -> list[dict[str, Any]]:
    """Prompts of both kinds in turn: drafts of extractions are nearly all kept, of stories not."""
    asked = [example.prompt for example in islice(examples(SEED, EXTRACTION, held_out=True), count)]
    told = [
        f"Write a short story about a {animal} named {name}{index}."
        for index in range(count)
        for animal, name in (STORIES[index % len(STORIES)],)
    ]
    pairs = [prompt for pair in zip(asked, told, strict=True) for prompt in pair]
    return [{"prompt": prompt, "max_tokens": LIMIT} for prompt in pairs[:count]]


def predicted(rows: Sequence[int], longest: int, rounds: int) -> dict[int, list[float]]:
    """The period that the plan has with 1, 2, … drafts, by number of rows, profiled now."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder, "prompts.jsonl")
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines(8)))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "stepweave", "profile", PIPELINE, "--drafts", "--json"),
                *("--rounds", str(rounds), "--rows", ",".join(map(str, rows))),
                *("--prompts", str(prompts), "-o", str(Path(folder, "costs.yaml"))),
                *("--set", f"nodes.draft.tokens={longest}", "--set", "torch_threads=1"),
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found = json.loads(done.stdout)["drafting"]
    return dict(zip(found["rows"], found["periods_us"], strict=True))


def policies(table: Table, longest: int) -> dict[str, Any]:
    """The sides by name: what each says as `policies.drafting`, or a fixed length."""
    fixed = {f"{drafts} drafts": drafts for drafts in range(1, longest + 1)}
    fastest = {"kind": "fastest", "rows": list(table), "periods_us": list(table.values())}
    base = next(iter(table.values()))
    cost = round((base[-1] - base[0]) / max(1, len(base) - 1) / base[0], 3)
    return {
        **fixed,
        "fastest": fastest,
        "by_rows": {"kind": "by_rows"},
        "by_acceptance": {"kind": "by_acceptance", "cost": cost},
    }


def engine(rows: int, longest: int, side: Any) -> LLM:
    """One side: `side` drafts, or at most `longest` by that policy."""
    adapts = isinstance(side, dict)
    overrides = {
        "torch_threads": "1",
        "scheduler.max_rows": str(rows),
        "scheduler.prefix_cache": "false",
        "nodes.draft.tokens": str(longest if adapts else side),
    }
    if adapts:
        overrides["policies.drafting"] = json.dumps(side)
    return LLM(pipeline=PIPELINE, overrides=overrides)


@dataclass(frozen=True)
class Length:
    """How long it is measured: runs before, steps before of sides that measure, and rounds.

    In the runs before shapes are recorded; in the steps numbers are measured and tried, as in a
    service of some minutes.
    """

    warm: int
    settle: int
    rounds: int
    engines: int  # of each side


def measure(
    rows: int, longest: int, count: int, length: Length, sides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Each side with so many rows. Raises `RuntimeError` where tokens differ."""
    asked = lines(count)
    engines = {
        (name, number): engine(rows, longest, side)
        for number in range(length.engines)
        for name, side in sides.items()
    }
    seconds: dict[str, list[list[float]]] = {
        name: [[] for _ in range(length.rounds)] for name in sides
    }
    tokens: dict[str, list[tuple[int, ...]]] = {}
    began: dict[str, list[float]] = {name: [] for name in sides}
    for (name, _), llm in engines.items():
        started = perf_counter()
        for _ in range(length.warm):
            told = [output.token_ids for output in llm.generate(asked)]
            if tokens.setdefault(name, told) != told:
                raise RuntimeError(f"{name}: tokens differ from run to run")
        began[name].append(perf_counter() - started)
        while name in MEASURES and llm.engine.totals.steps < length.settle:
            llm.generate(asked)
        llm.engine.totals.restore(type(llm.engine.totals)())
    first = next(iter(tokens.values()))
    if wrong := [name for name, each in tokens.items() if each != first]:
        raise RuntimeError(f"{', '.join(wrong)}: tokens differ")
    for turn in range(length.rounds):
        every = list(engines)
        # Each begins as often as it ends: the machine drifts within a round too.
        for which in every[turn % len(every) :] + every[: turn % len(every)]:
            started = perf_counter()
            engines[which].generate(asked)
            seconds[which[0]][turn].append(perf_counter() - started)
    number = sum(map(len, first))
    found = {}
    for name in sides:
        totals = [llm.engine.totals for (side, _), llm in engines.items() if side == name]
        rounds = [fmean(each) for each in seconds[name]]
        found[name] = {
            "tokens_per_second": number / Spread.of(rounds).median,
            "tokens_per_step": sum(t.tokens for t in totals) / sum(t.steps for t in totals),
            "accepted": sum(t.accepted for t in totals) / sum(t.drafted for t in totals),
            "seconds": rounds,
            "first_seconds": fmean(began[name]),
        }
    for llm in engines.values():
        llm.close()
    return found


def among(sides: Mapping[str, Any], named: str | None) -> dict[str, Any]:
    """The sides that are named, or all. Raises `SystemExit` for one that is none."""
    if named is None:
        return dict(sides)
    names = [each.strip() for each in named.split(",")]
    if wrong := [each for each in names if each not in sides]:
        raise SystemExit(f"no side {wrong[0]!r}; there are {', '.join(sides)}")
    if not any(each.endswith(" drafts") for each in names):
        raise SystemExit("name a fixed length to compare with, such as '3 drafts'")
    return {name: sides[name] for name in names}


def against_best(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Spread]:
    """The speed of each policy, as a share of that of the fixed length that is fastest.

    Which is fastest is found in every second round and compared in the others, and the other way
    round: of several that are about as fast, the one that chance made fastest would be no measure.
    """
    fixed = [name for name in found if name.endswith(" drafts")]
    shares: dict[str, list[float]] = {name: [] for name in found if name not in fixed}
    count = len(found[fixed[0]]["seconds"])
    for odd in range(min(2, count)):
        others = range(1 - odd if count > 1 else 0, count, 2)
        medians = {name: median(found[name]["seconds"][at] for at in others) for name in fixed}
        best = min(medians, key=medians.__getitem__)
        for at in range(odd, count, 2):
            for name, each in shares.items():
                each.append(found[best]["seconds"][at] / found[name]["seconds"][at])
    return {name: Spread.of(each) for name, each in shares.items()}


def at_first(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The speed of each policy in its first runs, as a share of that of the best fixed length.

    Sides had these one after the other, so what the machine drifted meanwhile is in it.
    """
    seconds = {name: each["first_seconds"] for name, each in found.items()}
    best = min(took for name, took in seconds.items() if name.endswith(" drafts"))
    return {name: best / took for name, took in seconds.items() if not name.endswith(" drafts")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", default="1,4,16")
    parser.add_argument("--longest", type=at_least_one, default=5)
    parser.add_argument("--prompts", type=at_least_one, default=16, help="at least")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--warm", type=at_least_one, default=24, help="runs before, not counted")
    parser.add_argument(
        "--settle", type=at_least_one, default=16384, help="steps before, of policies that measure"
    )
    parser.add_argument("--engines", type=at_least_one, default=2, help="of each side")
    parser.add_argument("--sides", help="only these, by their names; not given: all")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [int(each) for each in given.rows.split(",")]
    table = predicted(rows, given.longest, PROFILED)
    print("predicted period, µs:", json.dumps(table))
    result: dict[str, Any] = {
        "predicted_us": table,
        "prompts": given.prompts,
        "warm": given.warm,
        "settle": given.settle,
        "engines": given.engines,
    }
    sides = among(policies(table, given.longest), given.sides)
    length = Length(given.warm, given.settle, given.rounds, given.engines)
    for count in rows:
        prompts = max(given.prompts, PROMPTS * count)
        found = measure(count, given.longest, prompts, length, sides)
        shares, first = against_best(found), at_first(found)
        print(f"{count} rows")
        for side, each in found.items():
            share = (
                f"{shares[side]} of the best fixed length, {first[side]:.2f} at first"
                if side in shares
                else ""
            )
            print(
                f"  {side:14} {each['tokens_per_second']:8.0f} tokens/s "
                f"{each['tokens_per_step']:6.2f} per step {each['accepted']:6.1%} kept  {share}"
            )
        result[f"{count} rows"] = {
            side: {key: value for key, value in each.items() if not key.endswith("seconds")}
            | (
                {"of_best_fixed": vars(shares[side]), "of_best_fixed_at_first": first[side]}
                if side in shares
                else {}
            )
            for side, each in found.items()
        }
    save("draft_length", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
