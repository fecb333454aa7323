"""Devices and links as a file declares them: figures of data sheets and of published measurements.

A part is given by the name of one that ships (`configs/clusters/parts/`), or by its figures.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..configs.costs import Text
from ..configs.part import Part
from ..nodes.node_config import Name

Positive = Annotated[float, Field(gt=0, le=1e9)]
FromZero = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]


class DeviceConfig(Part):
    """A device, by what bounds a step on it."""

    describes: Text = Field(description="The device, as text for readers.")
    memory_gb: Positive = Field(description="Memory, in 10⁹ bytes.")
    memory_gb_s: Positive = Field(description="Bandwidth of the memory, as its data sheet says.")
    memory_share: Share = Field(
        default=1.0, description="The part of that bandwidth that kernels reach."
    )
    tflops: Positive = Field(
        description="10¹² dense 16-bit operations a second, as its data sheet says."
    )
    tflops_8bit: Positive | None = Field(
        default=None, description="The same of 8-bit operations. Default: those of 16 bits."
    )
    compute_share: Share = Field(
        default=1.0, description="The part of these operations that matrix products reach."
    )
    kernel_us: FromZero = Field(
        default=0.0, description="µs that pass between one kernel and the next of a graph."
    )


class AllReduceConfig(Part):
    """One algorithm of all-reduce on a link: a time for the smallest, and a bandwidth."""

    latency_us: FromZero = Field(description="µs that the smallest all-reduce takes.")
    gb_s: Positive = Field(
        description="ring: bus bandwidth, as nccl-tests define it. direct: what a device reads."
    )
    traffic: Literal["ring", "direct"] = Field(
        default="ring",
        description="ring: 2(n − 1)/n times the data pass each of n devices. direct: each device "
        "reads the data of the n − 1 others.",
    )
    up_to_kb: Positive | None = Field(
        default=None,
        description="Largest data in 2¹⁰ bytes; larger ones take the algorithm that has no limit.",
    )


class LinkConfig(Part):
    """What joins the devices of a node, or the nodes."""

    describes: Text = Field(description="The link, as text for readers.")
    gb_s: Positive = Field(description="10⁹ bytes a second of a device, in one direction.")
    latency_us: FromZero = Field(description="µs that the smallest message takes.")
    all_reduce: dict[Name, AllReduceConfig] = Field(
        min_length=1, max_length=16, description="Algorithms of all-reduce by name."
    )
