"""How a model is laid over devices: tensor groups, pipeline stages, replicas, and their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from ..configs.part import Part
from ..graph.errors import StepweaveError
from .model_shape import ShapeConfig

MOST_GROUPS = 8  # the largest depth of a pipeline

Size = Annotated[int, Field(ge=1, le=4096)]


class Unfit(StepweaveError):
    """A layout that the model, the devices or their memory do not allow."""

    code = "SW-LAYOUT"


class LayoutConfig(Part):
    """How many ranks share each layer, how many stages share the layers, and how many copies."""

    tensor: Size = Field(default=1, description="Ranks that share every layer.")
    pipeline: Size = Field(default=1, description="Stages that share the layers.")
    replicas: Size = Field(default=1, description="Copies of all this, each with its requests.")
    groups: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GROUPS,
        description="Groups of rows in flight in a pipeline of several stages. Default: one more "
        "than there are stages, 8 at most.",
    )

    def __str__(self) -> str:
        """As `--layout` takes it."""
        return f"{self.tensor}x{self.pipeline}x{self.replicas}"


@dataclass(frozen=True)
class Layout:
    """A layout whose sizes fit the model; ranks are numbered by replica, stage, tensor rank."""

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    groups: int = 1

    @staticmethod
    def of(asked: LayoutConfig, model: ShapeConfig) -> Layout:
        """Raises `Unfit` where heads or layers cannot be shared so."""
        tensor, stages = asked.tensor, asked.pipeline
        for what, count in (
            ("query heads", model.heads),
            ("KV heads", model.heads if model.latent is not None else model.kv_heads),
            ("columns of the feed-forward part", model.ffn),
            ("columns of an expert", tensor if model.experts is None else model.experts.ffn),
        ):
            if count % tensor:
                fit = [each for each in range(1, count + 1) if count % each == 0 and each <= 64]
                raise Unfit(
                    f"tensor {tensor} does not divide {count} {what}: use one of "
                    f"{', '.join(map(str, fit))}"
                )
        if stages > model.layers:
            raise Unfit(f"pipeline {stages}: the model has {model.layers} layers only")
        groups = (asked.groups or min(stages + 1, MOST_GROUPS)) if stages > 1 else 1
        return Layout(tensor, stages, asked.replicas, groups)

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.replicas

    def __str__(self) -> str:
        """`4x2x1`: tensor 4, pipeline 2, one replica."""
        return f"{self.tensor}x{self.pipeline}x{self.replicas}"

    def layers(self, model: ShapeConfig) -> list[range]:
        """The layers of each stage; where they do not divide, the first stages have one more."""
        each, more = divmod(model.layers, self.pipeline)
        bounds = [stage * each + min(stage, more) for stage in range(self.pipeline + 1)]
        return [range(*pair) for pair in pairwise(bounds)]

    def stage_devices(self, replica: int, stage: int) -> range:
        """The devices of one tensor group."""
        first = (replica * self.pipeline + stage) * self.tensor
        return range(first, first + self.tensor)


def possible_layouts(devices: int, model: ShapeConfig) -> Iterator[LayoutConfig]:
    """Every layout that uses all devices, with tensor groups that the model's sizes allow."""
    for tensor in (each for each in range(1, devices + 1) if devices % each == 0):
        for stages in range(1, devices // tensor + 1):
            if devices // tensor % stages:
                continue
            asked = LayoutConfig(
                tensor=tensor, pipeline=stages, replicas=devices // tensor // stages
            )
            try:
                Layout.of(asked, model)
            except Unfit:
                continue
            yield asked
