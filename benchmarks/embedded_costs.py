"""The costs file of the embedded model: how long each op takes, with each kind of drafter.

Runs `stepweave profile` on shipped pipelines, with prompts of its own, and puts the files together:
the ops that all pipelines have come from `quickstart`, those of a drafter from a pipeline with it.

    python -m benchmarks.embedded_costs [-o configs/costs/embedded.yaml] [--rows 1,4,8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from stepweave.configs.costs import CostsFile, OpCosts, costs_text, load_costs

from .paired import at_least_one

DRAFTERS = {"eagle3": "async_eagle3_grammar", "ngram": "async_ngram"}
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
    structured = pipeline != "async_ngram"
    lines = [line for line in PROMPTS if structured or "structured_outputs" not in line]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = folder / f"{pipeline}.yaml"
    command = [sys.executable, "-m", "stepweave", "profile", pipeline]
    options = ["--rows", rows, "--rounds", str(rounds), "--prompts", str(prompts), "-o", str(path)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return load_costs(path).file


def together(base: CostsFile, drafters: dict[str, CostsFile]) -> CostsFile:
    """One file: `base`, and the ops of node `draft` under the kinds of the other drafters."""
    kinds: dict[str, dict[str, OpCosts]] = {
        kind: {op: costs for op, costs in file.ops.items() if op.startswith("draft.")}
        for kind, file in drafters.items()
    }
    if "eagle3" in kinds:  # a head of either kind is one layer of the same width
        kinds = {"eagle": kinds["eagle3"], **kinds}
    about = "the embedded model on a shared machine without a GPU"
    notes = (*base.notes, "eagle: measured with the EAGLE-3 head")
    return base.model_copy(update={"describes": about, "kinds": kinds, "notes": notes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("configs/costs/embedded.yaml"))
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--rounds", type=at_least_one, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = measured("quickstart", given.rows, given.rounds, folder)
        drafters = {
            kind: measured(pipeline, given.rows, given.rounds, folder)
            for kind, pipeline in DRAFTERS.items()
        }
    given.output.write_text(costs_text(together(base, drafters), HEADING), encoding="utf-8")
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
