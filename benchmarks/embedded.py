"""What the embedded model gets right through the whole engine: extractions under a schema.

Names, jobs and places of these prompts were kept from training. The schema says the types of the
fields and nothing of their content. Runs the `quickstart` pipeline: async, speculation, grammar.

    python -m benchmarks.embedded [--prompts 200] [--set depth=1]
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

from stepweave import LLM
from training.corpus import EXTRACTION, Example, examples, story
from training.evaluate import schema_of

from .paired import at_least_one, own_process, save

SEED = 1


def held_out(count: int) -> list[Example]:
    """Extraction prompts with words that training never showed."""
    return list(islice(examples(SEED, EXTRACTION, held_out=True), count))


def as_line(example: Example) -> dict[str, Any]:
    """The example as a caller would send it who knows the fields."""
    return {
        "prompt": example.prompt,
        "max_tokens": 160,
        "structured_outputs": {"json": schema_of(json.loads(example.answer))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=at_least_one, default=200)
    parser.add_argument("--stories", type=at_least_one, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    llm = LLM(pipeline="quickstart", overrides=dict(each.split("=", 1) for each in given.set))
    asked = held_out(given.prompts)
    outputs = llm.generate([as_line(example) for example in asked])
    exact = sum(o.text == e.answer for o, e in zip(outputs, asked, strict=True))
    told = list(islice(examples(SEED + 1, {story: 1}, held_out=True), given.stories))
    stories = llm.generate([{"prompt": e.prompt, "max_tokens": 160} for e in told])
    faithful = sum(
        all(word in o.text for word in e.mentions) for o, e in zip(stories, told, strict=True)
    )
    summary = llm.summary()
    result = {
        "extractions_exact": f"{exact}/{len(asked)}",
        "stories_faithful": f"{faithful}/{len(told)}",
        "drafted": summary["drafted"],
        "accepted": summary["accepted"],
        "acceptance": summary["accepted"] / summary["drafted"],
        "tokens_per_step_and_row": 1 + 3 * summary["accepted"] / summary["drafted"],
    }
    print(json.dumps(result, indent=2))
    save("embedded", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
