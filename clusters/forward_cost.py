"""How long the forward pass of one stage takes, by roofline (Williams, Waterman, Patterson 2009).

Each part takes as long as its memory traffic or its operations, whichever is longer. Reading the
weights and reading keys and values do not overlap each other, nor what ranks say to each other:
they come one after another in every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .layout import Layout
from .links import Fabric
from .model_shape import ShapeConfig
from .parts import DeviceConfig


class Work(NamedTuple):
    """What a step computes."""

    rows: int = 0
    tokens: int = 0  # query tokens of all rows
    sampled: int = 0  # query tokens whose logits are wanted
    context: int = 0  # tokens of the cache that are read, over all rows
    attended: int = 0  # for each query token the tokens that it attends to, over all


class Parts(NamedTuple):
    """µs of a forward pass by what they are spent on."""

    weights: float = 0.0  # reading them
    arithmetic: float = 0.0  # matrix products that take longer than reading the weights
    attention: float = 0.0
    all_reduce: float = 0.0
    kernels: float = 0.0  # between kernels

    @property
    def us(self) -> float:
        return sum(self)


@dataclass(frozen=True)
class ForwardCost:
    """The forward pass of one stage of one replica on each of its devices."""

    model: ShapeConfig
    device: DeviceConfig
    fabric: Fabric
    layout: Layout
    stage: int
    replica: int = 0

    def of(self, work: Work) -> Parts:
        """µs of a step; all zero for no tokens."""
        if work.tokens == 0:
            return Parts()
        products = [
            self._product(self._dense, self._dense, work.tokens),
            *self._experts(work.tokens),
            *([self._product(self._head, self._head, work.sampled)] if self._last else []),
        ]
        read = [us for us, bound in products if bound]
        computed = [us for us, bound in products if not bound]
        return Parts(
            weights=sum(read),
            arithmetic=sum(computed),
            attention=self._attention(work),
            all_reduce=self._all_reduces(work),
            kernels=len(self._layers) * self.model.kernels * self.device.kernel_us,
        )

    def _product(self, read: float, active: float, tokens: float) -> tuple[float, bool]:
        """µs of products with `read` parameters, `active` for each token; whether reading binds."""
        reading = read * self.model.weight_bytes / self._bytes_per_us
        computing = 2.0 * active * tokens / self._operations_per_us
        return max(reading, computing), reading >= computing

    def _experts(self, tokens: int) -> list[tuple[float, bool]]:
        """The more tokens, the more experts are read: each token visits `active` at random."""
        experts, sparse = self.model.experts, self.model.expert_layers(self._layers)
        if experts is None or not sparse:
            return []
        each = sparse * self.model.expert_parameters / self.layout.tensor
        visited = experts.count * (1 - (1 - experts.active / experts.count) ** tokens)
        visits = experts.active + experts.shared
        return [self._product((visited + experts.shared) * each, visits * each, tokens)]

    def _attention(self, work: Work) -> float:
        tensor, layers = self.layout.tensor, len(self._layers)
        reading = work.context * self.model.cache_bytes(tensor) / self._bytes_per_us
        operations = work.attended * self.model.attention_operations(tensor)
        return layers * max(reading, operations / self._wide_operations_per_us)

    def _all_reduces(self, work: Work) -> float:
        """Two a layer, and a gathering of the logits. Each rank has the embedding whole."""
        if self.layout.tensor == 1:
            return 0.0
        size = work.tokens * self.model.hidden_bytes
        found = 2 * len(self._layers) * self.fabric.all_reduce_us(self._devices, size)
        if self._last:  # half the traffic of an all-reduce: nothing is added
            logits = work.sampled * self.model.vocab * 2
            found += self.fabric.all_reduce_us(self._devices, logits / 2)
        return found

    @cached_property
    def _devices(self) -> range:
        return self.layout.stage_devices(self.replica, self.stage)

    @cached_property
    def _layers(self) -> range:
        return self.layout.layers(self.model)[self.stage]

    @cached_property
    def _last(self) -> bool:
        return self.stage == self.layout.pipeline - 1

    @cached_property
    def _dense(self) -> float:
        """Parameters on each device that every token meets, without experts and head."""
        model, layers = self.model, self._layers
        dense = len(layers) - model.expert_layers(layers)
        met = len(layers) * model.attention_parameters + dense * model.dense_parameters
        met += model.router_parameters(layers)
        whole = model.replicated_parameters(layers)
        return whole + (met - whole) / self.layout.tensor

    @cached_property
    def _head(self) -> float:
        return self.model.embedding_parameters / self.layout.tensor

    @cached_property
    def _bytes_per_us(self) -> float:
        return self.device.memory_gb_s * self.device.memory_share * 1e3

    @cached_property
    def _operations_per_us(self) -> float:
        tflops = self.device.tflops
        if self.model.weight_bytes == 1:
            tflops = self.device.tflops_8bit or tflops
        return tflops * self.device.compute_share * 1e6

    @cached_property
    def _wide_operations_per_us(self) -> float:
        return self.device.tflops * self.device.compute_share * 1e6
