"""The costs file of the embedded model: how long each op takes, with nodes of each kind.

Runs `stepweave profile` on shipped pipelines, with prompts of its own, and puts the files together:
the ops that all pipelines have come from `quickstart`, those of nodes of a kind from a pipeline
that has one. With `--kinds` only these are measured, and put into the file as it is.

    python -m benchmarks.embedded_costs [-o configs/costs/embedded.yaml] [--rows 1,4,8] [--rounds 3]
        [--kinds suffix,mtp]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stepweave.configs.costs import CostsFile, OpCosts, costs_text, load_costs
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.step_graph import StepGraph
from stepweave.serving.pipeline import step_graph

from .paired import at_least_one

BASE = "quickstart"
KINDS = {
    "eagle": "async_eagle",
    "eagle3": "async_eagle3_grammar",
    "mtp": "async_mtp",
    "medusa": "async_medusa",
    "ngram": "async_ngram",
    "suffix": "async_suffix",
    "jump_forward": "async_jump_forward",
    "d2h_tokens": "async_allowed_drafts",
    "draft_mask": "async_allowed_drafts",
    "keep_path": "async_tree",
    "swap": "async_swap",
    "fork": "async_fork",
}
"""By kind of a node that not every pipeline has: where it is timed."""

RARE = "swap, fork: of steps in which no block is copied"
HEADING = """\
Measured by `python -m benchmarks.embedded_costs`, on a shared machine: durations on yours differ.
The model is the one that ships with the package, so all of its ops are short."""
PROMPTS = [
    {"prompt": f"Write a short story about a {animal} named {name}.", "max_tokens": 96}
    for animal, name in (("fox", "Ida"), ("dog", "Max"), ("cat", "Nora"), ("bear", "Rosa"))
] + [
    {
        "prompt": "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer "
        "from Warsaw.",
        "max_tokens": 96,
        "structured_outputs": {"json_object": True},
    }
]


def measured(pipeline: str, rows: str, rounds: int, folder: Path) -> CostsFile:
    """What `stepweave profile` writes for a pipeline."""
    prompts = folder / "prompts.jsonl"
    structured = any(node.kind == "bitmask" for node in graph_of(pipeline).nodes)
    lines = [line for line in PROMPTS if structured or "structured_outputs" not in line]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = folder / f"{pipeline}.yaml"
    command = [sys.executable, "-m", "stepweave", "profile", pipeline]
    options = ["--rows", rows, "--rounds", str(rounds), "--prompts", str(prompts), "-o", str(path)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return load_costs(path).file


def graph_of(pipeline: str) -> StepGraph:
    """Its graph."""
    config = load_config(pipeline)
    assert isinstance(config, PipelineConfig)
    return step_graph(config)


def of_kind(kind: str, file: CostsFile) -> dict[str, OpCosts]:
    """What the file of its pipeline says of the nodes of that kind."""
    vertices = graph_of(KINDS[kind]).vertices
    return {op: costs for op, costs in file.ops.items() if vertices[op].node.kind == kind}


def together(base: CostsFile, files: Mapping[str, CostsFile]) -> CostsFile:
    """`base`, with the ops of nodes of these kinds; those that it has of other kinds stay."""
    found = {**base.kinds, **{kind: of_kind(kind, file) for kind, file in files.items()}}
    return base.model_copy(
        update={
            "describes": "the embedded model on a shared machine without a GPU",
            "kinds": {kind: found[kind] for kind in KINDS if kind in found},
            "notes": tuple(dict.fromkeys((*base.notes, RARE))),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("configs/costs/embedded.yaml"))
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="these alone")
    given = parser.parse_args()
    kinds: list[str] = given.kinds or [*KINDS]
    with tempfile.TemporaryDirectory() as name:
        files = {
            pipeline: measured(pipeline, given.rows, given.rounds, Path(name))
            for pipeline in dict.fromkeys(
                (*([] if given.kinds else [BASE]), *(KINDS[kind] for kind in kinds))
            )
        }
    base = load_costs(given.output).file if given.kinds else files[BASE]
    whole = together(base, {kind: files[KINDS[kind]] for kind in kinds})
    given.output.write_text(costs_text(whole, HEADING), encoding="utf-8")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
