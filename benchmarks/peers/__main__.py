"""Against what a user would use on a CPU instead: transformers, llama.cpp, OpenVINO GenAI.

First the embedded model on a mixed batch (`embedded.py`), then random weights in the shapes of
SmolLM2-135M, Qwen3-0.6B and Llama-1B. A cell compares ours with one opponent, each in a process of
its own, in alternating rounds of the same prompts, greedy; the figure is the opponent's time over
ours. In float32 tokens must be equal, or the cell is marked. Cells are saved one by one and not
measured again, so a run may be cut off and gone on with. Opponents whose environment is not there
are left out (`python -m benchmarks.peers.environments` makes them).

    python -m benchmarks.peers [--only 'smollm2-135m/*/b1/*' …] [--minutes 30] [--list] [--table]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Any

from stepweave.models.threads import physical_cores

from ..paired import at_least_one, machine
from .cells import OPPONENTS, Cell, chosen, grid, toy
from .environments import ENVIRONMENTS, HERE
from .running import Ended, Limits, measured, work_of

RESULTS = Path(__file__).parents[1] / "results" / "peers_models.json"
EMBEDDED = "embedded"
EMBEDDED_S = 240.0  # about


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", metavar="CELL", help="names or patterns, quoted")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=physical_cores())
    parser.add_argument("--minutes", type=float, help="begin no cell after these")
    parser.add_argument("--cell-minutes", type=float, default=15.0, help="of one cell at most")
    parser.add_argument("--memory-gib", type=float, default=10.0, help="of each process at most")
    parser.add_argument("--quick", action="store_true", help="two rounds of 8 tokens; not kept")
    parser.add_argument("--toy", action="store_true", help="rehearse with tiny models; not kept")
    parser.add_argument("--again", action="store_true", help="measure cells that were saved, too")
    parser.add_argument("--list", action="store_true", help="cells and their expected minutes")
    parser.add_argument("--table", action="store_true", help="what was saved, and nothing else")
    parser.add_argument("--environments", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--models", type=Path, default=HERE / "models", metavar="FOLDER")
    parser.add_argument("--json", type=Path, help="where to write, in place of results/")
    given = parser.parse_args(argv)
    if given.quick:
        given.rounds = 2
    cells = toy() if given.toy else grid(tokens=8) if given.quick else grid()
    given.cells = {cell.name: cell for cell in cells}
    names = list(given.cells) if given.toy or given.quick else [EMBEDDED, *given.cells]
    try:
        given.names = chosen(names, given.only)
    except ValueError as error:
        parser.error(f"{error}")
    if given.json is None and not (given.toy or given.quick):
        given.json = RESULTS
    return given


class Kept:
    """The saved cells; `put` saves one at once, whole or not at all."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        found = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.cells: dict[str, Any] = found.get("cells", {})

    def put(self, name: str, held: dict[str, Any]) -> None:
        self.cells[name] = held
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.part")
            whole = {"machine": machine(), "cells": self.cells}
            part.write_text(json.dumps(whole, indent=1) + "\n")
            part.replace(self.path)


def missing(cell: Cell, environments: Path) -> bool:
    """Whether the opponent's environment is not there."""
    needed = cell.opponent.side.environment
    return needed is not None and not ENVIRONMENTS[needed].made(environments)


def one(cell: Cell, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of a cell, or why there are none."""
    held: dict[str, Any] = {
        "date": date.today().isoformat(),
        "threads": given.threads,
        "new_tokens": cell.tokens,
        "load_average": os.getloadavg()[0],
    }
    limits = Limits(given.cell_minutes * 60, given.memory_gib)
    try:
        given.models.mkdir(parents=True, exist_ok=True)
        work = work_of(cell, given.models, given.environments, given.threads)
        held |= measured(cell, work, given.environments, rounds=given.rounds, limits=limits)
    except (Ended, RuntimeError) as error:
        held["failed"] = f"{error}"
    return held


def embedded(given: argparse.Namespace) -> dict[str, Any]:
    """The table of the embedded model, which its script keeps in a file of its own."""
    line = [sys.executable, "-m", "benchmarks.peers.embedded", "--rounds", f"{given.rounds}"]
    try:
        code = subprocess.run(line, timeout=given.cell_minutes * 60, check=False).returncode
    except subprocess.TimeoutExpired:
        return {"failed": "ended at its limit of time"}
    return {"date": date.today().isoformat()} if code == 0 else {"failed": f"ended with {code}"}


def said(held: dict[str, Any]) -> str:
    if "failed" in held:
        return f"failed: {held['failed']}"
    if "sides" not in held:
        return "done"
    ratio, tokens = held["theirs_over_ours"], held["tokens"]
    equal = "" if tokens["equal"] else f"; {tokens['rows_equal']} of {tokens['rows']} rows equal"
    speeds = " / ".join(f"{side['tokens_per_s']:.1f}" for side in held["sides"].values())
    quartiles = f"[{ratio['low']:.2f} … {ratio['high']:.2f}]"
    return f"{ratio['median']:.2f} {quartiles}, {speeds} tokens/s{equal}"


def table(cells: dict[str, Any]) -> list[str]:
    """Markdown: an opponent's time over ours, so that above 1 ours is faster; then our side alone.

    In brackets the quartiles. Memory is that of the comparison with `generate`.
    """
    names = [each.name for each in OPPONENTS]
    own = ["ours, tokens/s", "ours, MiB (at most)"]
    lines = [f"| model, numbers, batch, prompt | {' | '.join([*names, *own])} |"]
    lines += ["| --- " * (1 + len(names) + len(own)) + "|"]
    rows: dict[str, dict[str, str]] = {}
    for name, held in cells.items():
        where, _, opponent = name.rpartition("/")
        if opponent in names:
            row = rows.setdefault(where, {})
            row[opponent] = _shown(held, exact="float32" in where)
            if opponent == names[0] and "sides" in held:
                ours = held["sides"]["ours"]
                shown = f"{ours['tokens_per_s']:.1f}", f"{ours['peak_mib']} ({held['most_mib']})"
                row.update(zip(own, shown, strict=True))
    lines += [
        f"| {where} | {' | '.join(row.get(name, '') for name in [*names, *own])} |"
        for where, row in rows.items()
    ]
    return lines


def _shown(held: dict[str, Any], *, exact: bool) -> str:
    if "failed" in held:
        return "failed"
    ratio, tokens = held["theirs_over_ours"], held["tokens"]
    unequal = exact and not tokens["equal"]
    quartiles = f"[{ratio['low']:.2f} {ratio['high']:.2f}]"
    return f"{ratio['median']:.2f} {quartiles}" + " (tokens differ)" * unequal


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = parsed(argv)
    kept = Kept(given.json)
    if given.table:
        print("\n".join(table(kept.cells)))
        return kept.cells
    todo = [name for name in given.names if given.again or name not in kept.cells]
    began, whole = monotonic(), 0.0
    for name in todo:
        cell = given.cells.get(name)
        seconds = EMBEDDED_S if cell is None else cell.expected_s(given.rounds, given.threads)
        if cell is not None and missing(cell, given.environments):
            print(f"{name}: left out, without the environment {cell.opponent.side.environment}")
            continue
        whole += seconds
        if given.list:
            print(f"{name}: {seconds / 60:.1f} minutes")
            continue
        if given.minutes is not None and monotonic() - began > given.minutes * 60:
            print(f"{name}: no time left")
            continue
        print(f"{name}: ", end="", flush=True)
        kept.put(name, embedded(given) if cell is None else one(cell, given))
        print(said(kept.cells[name]), flush=True)
    if given.list:
        print(f"{len(todo)} cells, about {whole / 60:.0f} minutes")
    return kept.cells


if __name__ == "__main__":
    main()
