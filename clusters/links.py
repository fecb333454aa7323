"""How long ranks take to talk: all-reduce by algorithm, and messages between stages.

A latency and a bandwidth each (Hockney 1994). Where a tensor group spans nodes, data are reduced
within each node, then between the nodes by each device with its counterparts, then handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.errors import StepweaveError, did_you_mean
from .parts import AllReduceConfig, LinkConfig


@dataclass(frozen=True)
class Fabric:
    """The links of a cluster. Device d is in node d // `devices_per_node`."""

    link: LinkConfig
    network: LinkConfig | None
    devices_per_node: int
    algorithm: str  # of all-reduce; `fastest`: whichever is, for each size

    def all_reduce_us(self, devices: Sequence[int], size: float) -> float:
        """µs of an all-reduce of `size` bytes over these devices; 0 for one device."""
        if len(devices) < 2:
            return 0.0
        nodes = {device // self.devices_per_node for device in devices}
        if len(nodes) == 1:
            return self._within(self.link, len(devices), size)
        inside = len(devices) // len(nodes)
        share = size / inside
        between = self._within(self._between_nodes(), len(nodes), share)
        return between + (self._within(self.link, inside, size) if inside > 1 else 0.0)

    def message_us(self, source: int, target: int, size: float) -> float:
        """µs of a message of `size` bytes."""
        same = source // self.devices_per_node == target // self.devices_per_node
        link = self.link if same else self._between_nodes()
        return link.latency_us + _us(size, link.gb_s)

    def _between_nodes(self) -> LinkConfig:
        if self.network is None:
            raise StepweaveError("a layout spans nodes, and no `network` joins them: name one")
        return self.network

    def _within(self, link: LinkConfig, ranks: int, size: float) -> float:
        fitting = {
            name: each
            for name, each in link.all_reduce.items()
            if each.up_to_kb is None or size <= each.up_to_kb * 1024
        }
        if self.algorithm != "fastest" and self.algorithm in fitting:
            return _all_reduce_us(fitting[self.algorithm], ranks, size)
        unlimited = {n: each for n, each in fitting.items() if each.up_to_kb is None}
        chosen = fitting if self.algorithm == "fastest" else unlimited
        if not chosen:
            raise StepweaveError(
                f"{link.describes}: every algorithm of all-reduce has a largest size, and "
                f"{size / 1024:,.0f} KiB is above them: give one without `up_to_kb`"
            )
        return min(_all_reduce_us(each, ranks, size) for each in chosen.values())


def _all_reduce_us(algorithm: AllReduceConfig, ranks: int, size: float) -> float:
    passed = 2 * (ranks - 1) / ranks if algorithm.traffic == "ring" else ranks - 1
    return algorithm.latency_us + _us(passed * size, algorithm.gb_s)


def _us(size: float, gb_s: float) -> float:
    return size / gb_s / 1e3


def unknown_algorithm(name: str, link: LinkConfig) -> str | None:
    """What to say of an algorithm that a link does not have; None where it has it."""
    if name == "fastest" or name in link.all_reduce:
        return None
    known = ("fastest", *link.all_reduce)
    return (
        f"{link.describes} has no all-reduce {name!r}{did_you_mean(name, known)}: use "
        f"{', '.join(known)}"
    )
