"""What the host pays for a decode step before the device begins: the batch staged, and prepared.

Rows decode in long contexts, with or without draft windows; each takes a new KV block in every
`block_size` steps. Staging is timed with block tables as deltas, and in alternating rounds with
every table whole. `prepare_inputs` is timed on the CPU, where each launch is processor time, and
its launches are counted.

    python -m benchmarks.staging [--rounds 41] [--context 32768] [--tokens 4096]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch

from stepweave.nodes.data import DraftTable, Progress
from stepweave.nodes.ops.block_tables import BlockTables
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.inputs import prepare
from stepweave.nodes.ops.sections import used
from stepweave.nodes.ops.staging import Staging
from stepweave.requests.batch import RequestSpec, ScheduledRow, StepBatch
from stepweave.requests.limits import Limits
from stepweave.requests.params import SamplingParams
from stepweave.testing.launches import Launches

from .paired import Spread, at_least_one, rounds, save

BLOCK, VOCAB, STEPS = 16, 32_000, 16


class Steps:
    """Sixteen decode steps of as many rows, at about so many tokens each."""

    def __init__(self, rows: int, drafts: int, context: int, tokens: int) -> None:
        self.limits = Limits(
            max_rows=rows,
            token_budget=max(256, rows * (drafts + 1)),
            block_size=BLOCK,
            num_blocks=rows * (context // BLOCK),
            context_length=context,
            draft_tokens=drafts,
            max_queue=1,
        )
        blocks = tuple(range(1, 1 + min(tokens, context) // BLOCK))
        most = min(tokens, context)
        params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=8)
        specs = [RequestSpec(uid, str(uid), params, 64, drafts + 1) for uid in range(rows)]

        def batch(step: int, known: Callable[[int], int]) -> StepBatch:
            return StepBatch(
                step,
                tuple(
                    ScheduledRow(spec, uid, 1, blocks, most=most, limit=context, known=known(uid))
                    for uid, spec in enumerate(specs)
                ),
            )

        deltas = [
            [len(blocks) - (uid % STEPS == step) for uid in range(rows)] for step in range(STEPS)
        ]
        self._deltas = [batch(step, deltas[step].__getitem__) for step in range(STEPS)]
        self._whole = [batch(step, lambda uid: 0) for step in range(STEPS)]
        self.staging = Staging(self.limits)
        slots = rows + 1
        self._progress = Progress(torch.full((slots,), 5), torch.full((slots,), most - drafts - 2))
        self._drafts = DraftTable.empty(slots, drafts)
        self._tables = BlockTables(slots, self.limits.blocks_for(context))
        self._history = History(slots, context)

    def staged(self, whole: bool) -> Callable[[], float]:
        """A round: milliseconds of processor time to stage one step."""
        batches = self._whole if whole else self._deltas

        def run() -> float:
            began = process_time()
            for batch in batches:
                # What a batch has found out about its rows is found out by staging.
                self.staging.fill(StepBatch(batch.step, batch.rows))
            return 1e3 * (process_time() - began) / STEPS

        return run

    def prepared(self) -> float:
        """Milliseconds of processor time of `prepare_inputs` in one step, on the CPU."""
        staged = self.staging.fill(self._deltas[0])
        began = process_time()
        for _ in range(STEPS):
            self._prepare(staged)
        return 1e3 * (process_time() - began) / STEPS

    def launches(self) -> int:
        """Of `prepare_inputs`, the copy to the device among them."""
        with Launches() as counted:
            self._prepare(self.staging.fill(self._deltas[0]))
        return int(counted.total)

    def kilobytes(self, whole: bool) -> float:
        """That a step uploads."""
        batch = (self._whole if whole else self._deltas)[0]
        return 8 * used(self.staging.fill(batch)) / 1e3

    def _prepare(self, staged: Any) -> None:
        prepare(
            staged,
            self._progress,
            self._drafts,
            self._history,
            self._tables,
            self.limits,
            VOCAB,
        )


def measured(steps: Steps, count: int) -> dict[str, Any]:
    """The figures of one kind of step, in milliseconds but for the counts."""
    whole, deltas = rounds(count, steps.staged(True), steps.staged(False))
    steps.prepared()
    return {
        "staged_ms": vars(Spread.of(deltas)),
        "staged_whole_tables_ms": vars(Spread.of(whole)),
        "prepared_ms": vars(Spread.of([steps.prepared() for _ in range(count)])),
        "launches": steps.launches(),
        "upload_kb": steps.kilobytes(False),
        "upload_whole_tables_kb": steps.kilobytes(True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=41)
    parser.add_argument("--rows", type=at_least_one, nargs="+", default=[1, 16, 128])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--context", type=at_least_one, default=32_768)
    parser.add_argument("--tokens", type=at_least_one, default=4_096)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {}
    print(f"{'':20} {'staged, ms':26} {'prepared, ms':26} launches  KB up  (whole tables)")
    for rows in given.rows:
        for drafts in given.drafts:
            found = measured(Steps(rows, drafts, given.context, given.tokens), given.rounds)
            table[f"{rows} rows, {drafts} drafts"] = found
            print(
                f"{rows:4} rows, {drafts} drafts   {Spread(**found['staged_ms'])}   "
                f"{Spread(**found['prepared_ms'])}   {found['launches']:8}  "
                f"{found['upload_kb']:.1f}  "
                f"({found['upload_whole_tables_kb']:.0f} KB, "
                f"{found['staged_whole_tables_ms']['median']:.3f} ms)"
            )
    about = {"context": given.context, "tokens": given.tokens, "rounds": given.rounds}
    save("staging", {**about, "steps": table}, given.json)


if __name__ == "__main__":
    main()
