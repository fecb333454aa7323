"""Work of different streams really goes on at once, in the order that the plan leaves open."""

from __future__ import annotations

from functools import partial

import torch

from stepweave.executors.on_streams import OnStreams
from tests.gpu.checks import Surrounded, beside, held_up, pipeline, traced

# Longer than the host takes to launch a step of this small model, tens of milliseconds: what may go
# on meanwhile has been launched by then.
spin = partial(torch.cuda._sleep, 100_000_000)


def test_the_copy_back_lies_beside_the_next_forward(gpu: torch.device) -> None:
    config = pipeline("async_eagle3_grammar", depth=2)
    slow_copy = Surrounded(OnStreams(gpu), held_up("d2h_copy.device", spin))
    both, steps = beside(traced(gpu, config, slow_copy), "d2h_copy.device", "forward.device")
    assert steps >= 8
    assert both >= 0.7 * steps


def test_at_depth_one_it_does_not(gpu: torch.device) -> None:
    config = pipeline("async_eagle3_grammar", depth=1)
    slow_copy = Surrounded(OnStreams(gpu), held_up("d2h_copy.device", spin))
    both, steps = beside(traced(gpu, config, slow_copy), "d2h_copy.device", "forward.device")
    assert steps >= 8
    assert both == 0


def test_masks_are_filled_while_the_model_runs(gpu: torch.device) -> None:
    config = pipeline("async_eagle3_grammar", depth=2)
    slow_forward = Surrounded(OnStreams(gpu), held_up("forward.device", spin))
    events = traced(gpu, config, slow_forward)
    spans = {(event.op, event.step): event for event in events}
    masked = [event for event in events if event.op.startswith("bitmask.host")]
    meanwhile = sum(
        spans["forward.device", each.step].start_s
        < each.end_s
        <= spans["forward.device", each.step].end_s
        for each in masked
        if ("forward.device", each.step) in spans
    )
    assert meanwhile >= 0.5 * len(masked)
