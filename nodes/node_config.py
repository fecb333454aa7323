"""An entry of a pipeline's `nodes`: the keys that every node has, whatever its kind."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr

from ..graph.arguments import MAX_DISTANCE
from ..graph.node import Read
from .options import Options

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s@\x00-\x1f\x7f-\x9f]+$")]
Microseconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
AUTO = "auto"
"""In place of a thread or stream: the one with which the predicted period is the shortest."""
_READ = re.compile(r"(?P<name>[^\s@]+?)(#(?P<firing>[0-9]{1,4}))?(@(?P<carry>[-+]?[0-9]{1,9}))?")


def parse_read(text: str) -> Read:
    """`sampled` is this step's version, `sampled@-1` that of the step before.

    `drafts#0` is that of the first firing in the step, of a node that has a rate.
    Raises `ValueError` for another form, a step to come, and one too long ago.
    """
    match = _READ.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a read: write a name, or name@-1 for the step before")
    carry = -int(match["carry"] or 0)
    if carry < 0:
        raise ValueError(f"{text!r} reads a step to come: write {match['name']}@-{-carry}")
    if carry > MAX_DISTANCE:
        raise ValueError(f"{text!r} reaches back more than {MAX_DISTANCE} steps")
    firing = match["firing"]
    return Read(match["name"], carry, None if firing is None else int(firing))


def wired(text: str) -> tuple[str | None, Read]:
    """What a parameter is to read: `tokens`, `tokens@-1`, or with the node that writes it, which
    comes first, `sample.tokens`.
    """
    found = parse_read(text)
    writer, _, value = found.name.rpartition(".")
    return writer or None, replace(found, name=value)


def _checked_read(text: Any) -> Any:
    if isinstance(text, str):
        parse_read(text)
    return text


ReadText = Annotated[
    str,
    BeforeValidator(_checked_read),
    Field(
        max_length=160, description="A value or state; `name@-1` is the value of the step before."
    ),
]


class NodeConfig(BaseModel):
    """A node of the decode step; the options of its kind stand beside these keys.

    A node that was read is also an instance of its kind's model of options.
    """

    model_config = Options.model_config

    kind: Name | None = Field(
        default=None, description="A registered node kind. null: the kind with the node's name."
    )
    after: Name | None = Field(
        default=None,
        description="In a file that extends another: the node after which this one is listed.",
    )
    before: Name | None = Field(
        default=None,
        description="In a file that extends another: the node before which this one is listed.",
    )
    actor: Name = Field(
        default="driver",
        description="The host thread that runs it, or launches its device op. auto: that of "
        "`actors` with the shortest predicted period; `check` says why.",
    )
    stream: Name | None = Field(
        default=None,
        description="The stream that runs its device op. null: the kind's. auto: that of `streams` "
        "with the shortest predicted period.",
    )
    reads: dict[Name, ReadText] = Field(
        default_factory=dict,
        max_length=256,
        description="By parameter of the kind: the value it reads in this pipeline, as "
        "`value`, `value@-1` or `node.value`.",
    )
    host_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its host ops in µs."
    )
    device_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its device ops in µs."
    )
    launch_latency_us: Microseconds | None = Field(
        default=None, description="µs from the start of the launch until the device op can start."
    )
    allow_sync: bool = Field(
        default=False, description="true: its host ops may wait for the device."
    )
    _line: int | None = PrivateAttr(default=None)

    @property
    def line(self) -> int | None:
        """Where the file mentions this node."""
        return self._line
