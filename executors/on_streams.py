"""An executor on the streams of a device: bodies are launched, and work goes on after that."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..backends import NoDevice, backend_of, device_called
from ..backends.streams import Streams
from ..graph.plan import Plan
from .capture import Captures
from .concurrent import run_on
from .report import RunReport
from .run_arguments import RunArguments


@dataclass
class OnStreams:
    """An executor: host threads, and streams of `device` (of the current one, without a number).

    `ranges`: to profilers, each op is called `node/step`. `graphs`: capture segments of device ops
    and replay them, as `capture.py` says; of steps with prompts of up to `pieces` tokens what ops
    have recorded in pieces. Captured graphs live as long as this object, so use one for all runs of
    an engine.
    """

    device: str | torch.device
    ranges: bool = False
    graphs: bool = False
    pieces: int = 0
    captures: Captures | None = field(default=None, init=False)
    _streams: Streams | None = field(default=None, init=False, repr=False, compare=False)
    _of: torch.device | None = field(default=None, init=False, repr=False, compare=False)

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        """Raises `NoDevice` where there is no such device, or it has no streams."""
        device = device_called(str(self.device))
        backend = backend_of(device)
        if not backend.has_streams:
            raise NoDevice(f"device {device} has no streams; run on it by executor 'threads'")
        plans = given.plans(plan)
        if self.graphs and (self.captures is None or not self.captures.fit(plans)):
            self._streams = None  # graphs share a stream's memory
            self.captures = Captures(*plans, largest=self.pieces)
        if self._streams is None or self._of != device:
            self._streams, self._of = backend.streams(device, ranges=self.ranges), device
        with backend.entered(device):
            return run_on(self._streams, plan, given, captures=self.captures)
