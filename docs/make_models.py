"""Write the list of models tested: every causal family of transformers, tried as a tiny model.

    python docs/make_models.py

writes `docs/reference/models-tested.md`; it takes a minute. A test tries a sample of the families
again and compares, and all of them at night, so the page says what is tested.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the families are in `tests`, which is not installed

from tests.models.families import NOT_TRIED, Outcome, families, outcome  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "models-tested.md"
VERSION = f"transformers {transformers.__version__}"
INTRODUCTION = """\
# Models tested

Stepweave has no code for model families: a model is tried when it is loaded, and refused if it
does not fit. So this list is made by trying. For each `model_type` that {version} has a
causal language model for, a tiny random model was saved, loaded in each mode, and run on the paged
cache in chunks. *Served* means that its greedy tokens are those of its own `generate`. The list is
written by `docs/make_models.py`; a test tries families again and compares.

Draft models, prompt look-up, EAGLE heads, grammars, sampling and every depth work with each family
that is served: they do not depend on the family, except for what the columns say.

* *invariant*: `model.invariant: true`, with which a token has the same bits in every batch.
* *merged*: `model.merge` makes one product of linear layers with one input.
* *EAGLE-3*: a head may read the hidden states of its layers.
"""


def tried(names: Iterable[str]) -> list[Outcome]:
    """The outcome of each family."""
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in names:
            with TemporaryDirectory() as folder:
                found.append(outcome(name, Path(folder)))
    finally:
        torch.set_num_threads(threads)
    return found


def row(one: Outcome) -> str:
    """A family's line in the table that it belongs to."""
    if one.served:
        marks = ("yes" if each else "" for each in (one.invariant, one.merged, one.heads))
        return f"| `{one.family}` | {' | '.join(marks)} |"
    if one.why == NOT_TRIED:
        return f"* `{one.family}`"
    return f"| `{one.family}` | {one.why.replace('|', '/')} |"


def page(outcomes: list[Outcome]) -> str:
    """The whole page."""
    served = [one for one in outcomes if one.served]
    untried = [one for one in outcomes if one.why == NOT_TRIED]
    refused = [one for one in outcomes if not one.served and one not in untried]

    def lines(some: list[Outcome]) -> str:
        return "\n".join(map(row, some))

    return "\n".join(
        (
            INTRODUCTION.format(version=VERSION),
            f"## Served: {len(served)}\n",
            "| family | invariant | merged | EAGLE-3 |\n| --- | --- | --- | --- |",
            f"{lines(served)}\n",
            f"## Refused: {len(refused)}\n",
            "Each with a `ModelError` that says why.\n",
            "| family | why |\n| --- | --- |",
            f"{lines(refused)}\n",
            f"## Not tried: {len(untried)}\n",
            "No configuration small enough was found with which the family's own code works.\n",
            f"{lines(untried)}\n",
        )
    )


def main() -> None:
    transformers.logging.set_verbosity_error()
    PAGE.write_text(page(tried(families())), encoding="utf-8")


if __name__ == "__main__":
    main()
