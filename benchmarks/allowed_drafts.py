"""Drafts that are kept where drafters propose what a grammar allows, and where they propose any.

The embedded model, float32, greedy: extractions of held-out words under their schema, answers that
a regular expression shapes in another way than the model was taught, and calls between tags. Those
drafters that choose on the device have the mask of their first draft (`draft_mask`); the one that
looks texts up on the host walks each way on with the grammar (`propose: allowed`). Tokens are
equal; what is kept depends on no clock, so requests are decoded together.

    python -m benchmarks.allowed_drafts [--prompts 8] [--tokens 48] [--drafters eagle3,ngram]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stepweave import LLM
from training.corpus import EXTRACTION, examples
from training.evaluate import schema_of

from .paired import at_least_one, own_process, save

SEED = 17
DRAFTERS = ("draft_model", "eagle", "eagle3", "mtp", "medusa", "ngram", "suffix")
MODULE = "embedded-mtp"
KINDS = ("schema", "regex", "tag")
MASKED: dict[str, Any] = {
    "nodes.d2h_tokens.after": "sample",
    "nodes.draft_mask.after": "d2h_tokens",
    "nodes.draft.after": "draft_mask",
}
REGEX = r"[A-Z][a-z]+ is (a|an) [a-z]+, aged [1-9][0-9]?; (he|she|it) lives in [A-Z][a-z]+\."
CALL = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {
            "type": "json_schema",
            "json_schema": {
                "type": "object",
                "properties": {
                    "tool": {"enum": ["search", "store"]},
                    "arguments": {"type": "array", "items": {"type": "string", "maxLength": 12}},
                },
                "required": ["tool", "arguments"],
                "additionalProperties": False,
            },
        },
        "end": "</call>",
    },
}


def workloads(count: int, tokens: int) -> dict[str, list[dict[str, Any]]]:
    """Requests by kind of grammar, `count` of each."""
    found = list(islice(examples(SEED, EXTRACTION, held_out=True), count))
    grammars: tuple[list[dict[str, Any]], ...] = (
        [{"json": schema_of(json.loads(each.answer))} for each in found],
        [{"regex": REGEX}] * count,
        [{"structural_tag": CALL}] * count,
    )
    return {
        name: [
            {"prompt": each.prompt, "max_tokens": tokens, "structured_outputs": grammar}
            for each, grammar in zip(found, asked, strict=True)
        ]
        for name, asked in zip(KINDS, grammars, strict=True)
    }


@dataclass(frozen=True)
class Counts:
    """What requests came to: the first token of each needs no draft, and is not counted."""

    tokens: int
    drafted: int
    accepted: int

    def to_json(self) -> dict[str, float]:
        """Accepted drafts per token, and of those that were judged."""
        return {
            "accepted_per_token": round(self.accepted / max(1, self.tokens), 4),
            "accepted_per_judged": round(self.accepted / max(1, self.drafted), 4),
        }


def measured(
    drafter: str, by_grammar: bool, given: dict[str, list[dict[str, Any]]]
) -> tuple[dict[str, Counts], list[Sequence[int]]]:
    """Counts by kind of grammar, and the tokens of each request."""
    changes: dict[str, Any] = {
        "torch_threads": 1,
        "executor": "serial",
        "nodes.draft": {"kind": drafter, "after": "sample", "tokens": 3},
    }
    if drafter == "mtp":
        changes["nodes.draft"]["model"] = MODULE
    if by_grammar and drafter == "suffix":
        changes["nodes.draft"]["propose"] = "allowed"
    elif by_grammar:
        changes |= MASKED
    counts: dict[str, Counts] = {}
    said: list[Sequence[int]] = []
    with LLM(pipeline="async_grammar", overrides=changes) as llm:
        for name, lines in given.items():
            outputs = llm.generate(lines)
            counts[name] = Counts(
                sum(len(each.token_ids) - 1 for each in outputs),
                sum(each.drafted for each in outputs),
                sum(each.accepted for each in outputs),
            )
            said += [each.token_ids for each in outputs]
    return counts, said


def run(prompts: int, tokens: int, drafters: Sequence[str]) -> dict[str, Any]:
    """Each drafter, without and with the grammar. Raises `ValueError` where tokens differ."""
    given = workloads(prompts, tokens)
    results: list[dict[str, Any]] = []
    before: list[Sequence[int]] | None = None
    for drafter in drafters:
        for by_grammar in (False, True):
            counts, said = measured(drafter, by_grammar, given)
            if before is not None and said != before:
                raise ValueError(f"{drafter}: other tokens than before")
            before = said
            results += [
                {
                    "drafter": drafter,
                    "grammar": name,
                    "among": "allowed" if by_grammar else "any",
                    **each.to_json(),
                }
                for name, each in counts.items()
            ]
    return {"prompts_of_a_kind": prompts, "tokens": tokens, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=at_least_one, default=8, help="of each kind of grammar")
    parser.add_argument("--tokens", type=at_least_one, default=48, help="of an output, at most")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = run(given.prompts, given.tokens, given.drafters.split(","))
    for line in found["results"]:
        print(
            "{drafter:12} {grammar:7} {among:8} {accepted_per_token:.3f} a token, "
            "{accepted_per_judged:.3f} of those judged".format(**line)
        )
    save("allowed_drafts", found, given.json)


if __name__ == "__main__":
    own_process()
    main()
