"""What the policy `resumption: cheaper` compares: a copy of a KV block, and a token computed again.

As `stepweave profile` measures it, without the rest of a profile. It prints the line for the
pipeline's file.

    python -m benchmarks.resumption [PIPELINE] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepweave import LLM
from stepweave.serving.resumption_costs import resumption_costs

from .paired import at_least_one, own_process, save


def measured(pipeline: str, count: int) -> dict[str, Any]:
    """All costs in µs, and the line."""
    with LLM(pipeline=pipeline) as llm:
        found = resumption_costs(llm, count)
    assert found is not None, f"{pipeline} swaps no blocks"
    spreads = {f"{name}_us": spread._asdict() for name, spread in vars(found).items()}
    return {"pipeline": pipeline, "policy": str(found), **spreads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", nargs="?", default="async_swap")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measured(given.pipeline, given.rounds)
    print("policies:")
    print(f"  resumption: {found['policy']}")
    if given.json is not None:
        save("resumption", found, given.json)


if __name__ == "__main__":
    own_process()
    main()
