"""What a layout leaves for keys and values; a layout that does not fit is refused with numbers."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout, Unfit
from .model_shape import ShapeConfig
from .parts import DeviceConfig

GB = 1e9


@dataclass(frozen=True)
class Memory:
    """The memory of one replica, by stage, in bytes on each of its devices."""

    weights: tuple[float, ...]
    token: tuple[float, ...]  # of one token in the cache
    usable: float
    block_size: int

    @property
    def blocks(self) -> int:
        """KV blocks of a replica: those of the stage that has room for the fewest."""
        return min(
            int((self.usable - weights) // (token * self.block_size))
            for weights, token in zip(self.weights, self.token, strict=True)
        )


def memory_of(
    layout: Layout,
    model: ShapeConfig,
    device: DeviceConfig,
    *,
    share: float,
    block_size: int,
    drafter_bytes: float = 0.0,
) -> Memory:
    """What each device of a replica holds; `share` of its memory may be used.

    The drafter lies whole on every device of the last stage. Raises `Unfit` where the weights
    leave no room for a block.
    """
    stages = layout.layers(model)
    weights = [
        stage_weights(layout, model, stage) * model.weight_bytes for stage in range(len(stages))
    ]
    weights[-1] += drafter_bytes
    token = [float(len(layers) * model.cache_bytes(layout.tensor)) for layers in stages]
    found = Memory(tuple(weights), tuple(token), device.memory_gb * GB * share, block_size)
    if found.blocks < 1:
        needs = [held + each * block_size for held, each in zip(weights, token, strict=True)]
        stage = needs.index(max(needs))
        raise Unfit(
            f"stage {stage} needs {weights[stage] / GB:.4g} GB for weights and "
            f"{token[stage] * block_size / GB:.3g} GB for a KV block on each device; "
            f"{found.usable / GB:.4g} of {device.memory_gb:g} GB may be used"
        )
    return found


def stage_weights(layout: Layout, model: ShapeConfig, stage: int) -> float:
    """Parameters on each device of a stage: the first has the embedding, the last the head.

    Ranks divide the head, and have the embedding whole: as the plans of transformers say.
    """
    layers = layout.layers(model)[stage]
    whole = model.replicated_parameters(layers)
    shared = model.layer_parameters(layers) - whole
    if stage == 0:
        whole += model.embedding_parameters
    if stage == layout.pipeline - 1 and not (model.tied and stage == 0):
        shared += model.embedding_parameters
    return whole + shared / layout.tensor
