"""Draft trees: what a file says of their shape, and the shape itself.

A tree's nodes are the places 1 … k of a draft window, whose place 0 is the row's last token. Each
comes after its parent, so the first n of them are a tree too: that of a row which may be offered n
drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ..graph.parameters import Resource, given, settings
from .options import MOST_DRAFTS, DrafterOptions
from .sizes import Sizes
from .values import SIZES, TARGET

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..models.causal_lm import CausalLM

MOST_NODES = 62
"""A place's ancestors are bits of one 64-bit number, and one bit is its sign."""


@dataclass(frozen=True)
class Tree:
    """A shape of draft trees. `parents`: of the places 1 … k, place by place."""

    parents: tuple[int, ...]

    @staticmethod
    def of(paths: Sequence[Sequence[int]]) -> Tree:
        """The tree of these nodes, each by its way from the root: `[0, 1]` is the second choice
        after the first one. Raises `ValueError` for a node without its parent, or its elder
        sibling.
        """
        found = sorted({tuple(path) for path in paths})
        place = {path: index for index, path in enumerate(found, start=1)}
        place[()] = 0
        for path in found:
            if not path or min(path) < 0:
                raise ValueError(f"{list(path)} is no way from the root: say [0] for the best")
            elder = (*path[:-1], path[-1] - 1)
            for other in (path[:-1], *([elder] if path[-1] else [])):
                if other not in place:
                    raise ValueError(f"{list(path)} is in the tree, but not {list(other)}")
        if len(found) < len(paths):
            raise ValueError("a way from the root is there twice")
        return Tree(tuple(place[path[:-1]] for path in found))

    def first(self, count: int) -> Tree:
        """The tree of its first `count` nodes."""
        return Tree(self.parents[:count])

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of the places 0 … k: how far behind the row's last token."""
        found = [0]
        for parent in self.parents:
            found.append(found[parent] + 1)
        return tuple(found)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of the places 0 … k, likeliest first."""
        found: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for place, parent in enumerate(self.parents, start=1):
            found[parent].append(place)
        return tuple(map(tuple, found))

    @property
    def depth(self) -> int:
        """Drafts on its longest path."""
        return max(self.depths)

    def level(self, depth: int) -> tuple[int, ...]:
        """The places of a depth that have children, in order."""
        every = enumerate(zip(self.depths, self.children, strict=True))
        return tuple(place for place, (at, after) in every if at == depth and after)

    def branches(self, device: torch.device | str = "cpu") -> Tensor:
        """`[3, k + 1]` int64: the lines of branches, as `TreePlaces` says. Raises nothing."""
        import torch

        bits = [1]
        for place, parent in enumerate(self.parents, start=1):
            bits.append(bits[parent] | 1 << place)
        return torch.tensor([[0, *self.parents], self.depths, bits]).to(device)


class Growth(BaseModel):
    """How a tree grows that is made anew for each window: where its drafter is sure (EAGLE-2)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(ge=1, le=16, description="Nodes that a pass of the drafter expands.")
    depth: int = Field(
        ge=1, le=MOST_DRAFTS, description="Passes of the drafter, and drafts of the longest path."
    )
    children: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Likeliest tokens that are looked at after a node. null: as many as `width`.",
    )
    among: Literal["level", "all"] = Field(
        default="level",
        description="What a pass expands. level: the likeliest nodes that the pass before found, "
        "as EAGLE-2. all: the likeliest of all that were found.",
    )

    @model_validator(mode="after")
    def _has_enough(self) -> Growth:
        if self.each < self.width:
            raise ValueError(
                f"children: {self.each} of a node are fewer than the {self.width} of a pass"
            )
        return self

    @property
    def each(self) -> int:
        """Children of a node that is expanded."""
        return self.width if self.children is None else self.children

    @property
    def least(self) -> int:
        """Nodes that it must have for the nodes that are expanded to find room."""
        return (self.depth - 1) * self.width + 1

    @property
    def most(self) -> int:
        """Nodes that it finds to choose from."""
        return self.each * self.least


Nodes = Annotated[
    tuple[tuple[int, ...], ...], Field(min_length=1, max_length=MOST_NODES, title="nodes")
]


def _form(given: Any) -> str:
    return "grown" if isinstance(given, dict | Growth) else "listed"


class TreeOptions(DrafterOptions):
    """Options of a drafter that can offer a tree."""

    tokens: int = Field(
        default=3,
        ge=1,
        le=MOST_NODES,
        description=f"Tokens drafted per step and row, at most: {MOST_DRAFTS} one after the other, "
        f"or {MOST_NODES} of a tree. With `tree` it is the number of its nodes.",
    )
    tree: (
        Annotated[
            Annotated[Nodes, Tag("listed")] | Annotated[Growth, Tag("grown")], Discriminator(_form)
        ]
        | None
    ) = Field(
        default=None,
        description="A draft tree. A list: its nodes, each as its way from the root: [0] is the "
        "likeliest next token, [0, 1] the second choice after it. width and depth: it grows where "
        "the drafter is sure. null: one draft after the other.",
    )

    @model_validator(mode="after")
    def _fits(self) -> TreeOptions:
        least, most = 1, MOST_DRAFTS
        if isinstance(self.tree, Growth):
            least, most = self.tree.least, min(self.tree.most, MOST_NODES)
            if least > MOST_NODES:
                raise ValueError(
                    f"tree: of this width and depth it has {least} nodes at least, and a tree has "
                    f"{MOST_NODES} at most: lower one of the two"
                )
        elif self.tree is not None:
            Tree.of(self.tree)
            least = most = len(self.tree)
        if self.tree is not None and "tokens" not in self.model_fields_set:
            self.__dict__["tokens"] = least
        if not least <= self.tokens <= most:
            said = f"{least}" if least == most else f"{least} to {most}"
            what = "without a tree" if self.tree is None else "of this tree"
            raise ValueError(f"tokens: {said} {what}, not {self.tokens}")
        return self

    @property
    def tree_depth(self) -> int:
        """Drafts on the longest path of a tree; 0: it offers none."""
        if isinstance(self.tree, Growth):
            return self.tree.depth
        return 0 if self.shape is None else self.shape.depth

    @property
    def shape(self) -> Tree | None:
        """The tree that it always offers; None: it offers none, or each time another."""
        return None if self.tree is None or isinstance(self.tree, Growth) else Tree.of(self.tree)


@dataclass(frozen=True)
class ListedTree:
    """The tree that a drafter always offers, and on its device what everybody must know of it."""

    shape: Tree
    branches: Tensor  # [3, k + 1] int64: see `Tree.branches`


@dataclass(frozen=True)
class GrownTree:
    """Trees that a drafter makes anew, of up to `most` nodes."""

    growth: Growth
    most: int


def _draft_tree(
    chosen: TreeOptions = settings(TreeOptions),
    target: CausalLM = given(TARGET),
    sizes: Sizes = given(SIZES),
) -> ListedTree | GrownTree | None:
    if chosen.tree is not None:
        from ..models.fitting import fit_tree

        fit_tree(sizes.tree_depth, target)
    if isinstance(chosen.tree, Growth):
        return GrownTree(chosen.tree, chosen.tokens)
    shape = chosen.shape
    return None if shape is None else ListedTree(shape, shape.branches(target.device))


DRAFT_TREE: Resource[ListedTree | GrownTree | None] = Resource("draft_tree", _draft_tree)
"""What a drafter's `tree` asks for; None: it offers one draft after the other."""
