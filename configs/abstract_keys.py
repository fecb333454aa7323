"""What an abstract graph says of the keys of its states."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..graph.arguments import MAX_DISTANCE
from ..nodes.node_config import Name
from .part import Part

Keys = Annotated[
    Name | None,
    Field(
        description="Name of the pool whose keys name parts of the state, such as its blocks. Then "
        "ops of different `classes` use different keys at a time. null: it has no keys."
    ),
]
Classes = Annotated[
    dict[Name, Name],
    Field(
        description="For each keyed state that it accesses, the class of users for which it does; "
        "`owner` for a state that is not named."
    ),
]


class AbstractLease(Part):
    """How soon a key must be able to pass from one class of users to another."""

    source: Name = Field(alias="from", description="The class that had the key.")
    target: Name = Field(alias="to", description="The class that gets it.")
    steps: int = Field(
        ge=-MAX_DISTANCE,
        le=MAX_DISTANCE,
        description="At most so many steps after the last of the old users' steps.",
    )

    def pin(self) -> tuple[str, str, int]:
        return self.source, self.target, self.steps
