"""Functions that are named where a node is declared, and imported when its graph is to run.

What a node reads and writes needs no tensors; what its ops do needs torch. So a declaration names
the functions, and a graph that is only checked, drawn or simulated never imports their modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from ..graph.node import Op, Value


@dataclass(frozen=True, slots=True)
class Later:
    """A call of a function known by name, with its first arguments."""

    where: str  # module:function
    arguments: tuple[Any, ...]

    def imported(self) -> partial[Any]:
        """The call as Python's own `partial`; arguments that are such calls are imported too."""
        module, _, function = self.where.partition(":")
        found = getattr(import_module(module), function)
        return partial(found, *map(imported, self.arguments))

    def __call__(self, *rest: Any) -> Any:
        return self.imported()(*rest)


def later(where: str, *arguments: Any) -> Any:
    """The function `where`, as `"package.module:function"`, called with `arguments` and then more.

    For the `run` of an op, for `allocate` and `initial` of a value. The module is imported when a
    graph is built for a run.
    """
    return Later(where, arguments)


def imported(given: Any) -> Any:
    """What `given` stands for, if it is named only; else itself."""
    return given.imported() if isinstance(given, Later) else given


def op_for_a_run(op: Op) -> Op:
    """The op with its body imported."""
    return replace(op, run=imported(op.run))


def value_for_a_run(value: Value) -> Value:
    """The value with its initial version made, and the code that allocates its slots imported."""
    initial = value.initial() if isinstance(value.initial, Later) else value.initial
    return replace(value, initial=initial, allocate=imported(value.allocate))
