"""Many operations as one call: the interpreter of TorchScript does them without the GIL.

Python costs an operation of a small model more than the operation does, and while Python is busy
with one, no other thread gets on. So operations are written down as a graph of TorchScript, node
by node, with the overload that is meant; nothing is optimized, and the kernels are those that a
call from Python reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


class Call(Protocol):
    """What does one operation, or many."""

    def __call__(self) -> object: ...

    def moved(self, change: Change) -> Call:
        """The same with what `change` makes of each tensor."""


class NoNode(Exception):
    """The operation cannot be written down as a node."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of an overload, with all that it is given."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[Tensor] = ()  # each [...]; where its results are copied, if they are needed

    def __call__(self) -> None:
        results = self.func(*self.args, **self.kwargs)
        if self.places:
            for place, result in zip(self.places, leaves([results]), strict=True):
                place.copy_(result)

    def moved(self, change: Change) -> Operation:
        """As of `Call`."""
        args, places = changed(self.args, change), changed(self.places, change)
        kwargs = {name: changed(part, change) for name, part in self.kwargs.items()}
        return Operation(self.func, args, kwargs, places)

    def given(self) -> Iterator[tuple[_Parameter, Any]]:
        """What each argument is, by the schema and here."""
        for place, parameter in enumerate(_declared(self.func).parameters):
            if not parameter.named and place < len(self.args):
                yield parameter, self.args[place]
            else:
                yield parameter, self.kwargs.get(parameter.name, parameter.default)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What a schema says of an argument. `named`: it has no place."""

    name: str
    type: Any
    written: str  # the type
    named: bool
    default: Any

    @staticmethod
    def of(argument: Any) -> _Parameter:
        kind, written = argument.type, f"{argument.type}"
        return _Parameter(argument.name, kind, written, argument.kwarg_only, argument.default_value)


@dataclass(frozen=True, slots=True)
class _Declared:
    """The schema of an overload, whose parts torch makes anew whenever they are asked for."""

    name: str
    written: str  # all of it
    parameters: tuple[_Parameter, ...]
    returns: tuple[Any, ...]
    tensors: bool
    """It returns single tensors only."""


@cache
def _declared(func: Any) -> _Declared:
    schema = func._schema
    returns = tuple(each.type for each in schema.returns)
    return _Declared(
        schema.name,
        f"{schema}",
        tuple(map(_Parameter.of, schema.arguments)),
        returns,
        all(f"{each}" == "Tensor" for each in returns),
    )


def operation(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    places: Sequence[Tensor] = (),
) -> Operation:
    """A call of `func`, its results copied to `places[...]`.

    Numbers that stand for tensors become tensors where that changes nothing, as no node has them.
    """
    parameters = _declared(func).parameters
    types = {parameter.name: parameter.written for parameter in parameters}
    written = [each.written for each in parameters if not each.named][: len(args)]
    written += [types[name] for name in kwargs]
    parts = [*args, *kwargs.values()]
    numbers = [
        place
        for place, (type_, part) in enumerate(zip(written, parts, strict=True))
        if type_ == "Tensor" and type(part) in _DTYPES
    ]
    if numbers:
        tensors = [*leaves(parts)]
        for place in numbers:
            parts[place] = _as_tensor(parts[place], tensors)
    return Operation(
        func,
        tuple(parts[: len(args)]),
        dict(zip(kwargs, parts[len(args) :], strict=True)),
        places,
    )


_DTYPES: Mapping[type, torch.dtype] = MappingProxyType(
    {bool: torch.bool, int: torch.int64, float: torch.float64}
)


def _as_tensor(number: Any, beside: Sequence[Tensor]) -> Any:
    """A tensor for a number that is given with others `[...]`, if torch then computes in the same
    type: a number of Python never makes that larger, a tensor without dimensions may."""
    made = torch.tensor(number, dtype=_DTYPES[type(number)])
    settles = any(each.dim() and _rank(each) >= _rank(made) for each in beside)
    alike = (torch.result_type(t, number) == torch.result_type(t, made) for t in beside)
    return made if settles and all(alike) else number


def _rank(tensor: Tensor) -> int:
    """What decides of two types which is the larger, before their sizes do."""
    kind = tensor.dtype
    return 3 if kind.is_complex else 2 if kind.is_floating_point else int(kind != torch.bool)


def leaves(parts: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors `[...]` among the arguments or results of an operation."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from leaves(part)


def in_few_calls(steps: Sequence[Operation]) -> list[Call]:
    """The same steps in the same order; operations that follow each other are one call.

    A torch without TorchScript gets them one by one.
    """
    if not hasattr(torch._C, "_create_function_from_graph"):
        return list(steps)
    calls: list[Call] = []
    program = _Program()
    for step in steps:
        try:
            program.add(step)
        except NoNode:
            calls += program.calls()
            calls.append(step)
            program = _Program()
    return calls + program.calls()


class _Program:
    """A graph whose nodes are operations on the tensors of a list, its only input."""

    def __init__(self) -> None:
        self._graph: Any = torch._C.Graph()
        self._operations: list[Operation] = []
        self._tensors: dict[int, tuple[Tensor, Any]] = {}  # id -> (tensor [...], its value)
        given = self._graph.addInput()
        given.setType(torch._C.ListType(_TENSOR))
        self._unpack = self._graph.create("prim::ListUnpack", [given], 0)
        self._graph.insertNode(self._unpack)

    def add(self, operation: Operation) -> None:
        """As the last node. Raises `NoNode`."""
        if not isinstance(operation.func, torch._ops.OpOverload):
            raise NoNode
        declared = _declared(operation.func)
        if operation.places and not (
            declared.tensors and len(declared.returns) == len(operation.places)
        ):
            raise NoNode
        values = [
            self._value(parameter.type, parameter.written, part)
            for parameter, part in operation.given()
        ]
        results = self._insert(operation.func, values)
        for place, result in zip(operation.places, results, strict=False):
            self._insert(_COPY, [self._tensor(place), result, self._graph.insertConstant(False)])
        self._operations.append(operation)

    def _insert(self, func: Any, values: Sequence[Any]) -> Sequence[Any]:
        declared = _declared(func)
        node = self._graph.create(declared.name, values, len(declared.returns))
        results = list(node.outputs())
        for value, returned in zip(results, declared.returns, strict=True):
            value.setType(returned)
        self._graph.insertNode(node)
        if node.schema() != declared.written:
            node.destroy()
            raise NoNode
        return results

    def _value(self, type_: Any, written: str, part: Any) -> Any:
        if isinstance(part, Tensor):
            return self._tensor(part)
        if written == "Tensor" and part is not None:
            raise NoNode  # a number
        if isinstance(part, list | tuple) and (not part or "Tensor" in written):
            if not isinstance(type_, torch._C.ListType):
                raise NoNode  # nothing makes an optional list
            values = [self._value(_TENSOR, "Tensor", each) for each in part]
            node = self._graph.create("prim::ListConstruct", values, 1)
            node.output().setType(type_)
            self._graph.insertNode(node)
            return node.output()
        if written == "float" and isinstance(part, int):
            part = float(part)
        try:
            value = self._graph.insertConstant(list(part) if isinstance(part, tuple) else part)
        except (RuntimeError, TypeError, ValueError) as error:
            raise NoNode from error
        return value

    def _tensor(self, tensor: Tensor) -> Any:
        known = self._tensors.get(id(tensor))
        if known is None:
            value = self._unpack.addOutput()
            value.setType(_TENSOR)
            known = self._tensors[id(tensor)] = tensor, value
        return known[1]

    def calls(self) -> list[Call]:
        """What does it all."""
        if len(self._operations) < 2:
            return [*self._operations]
        self._graph.registerOutput(self._graph.insertConstant(None))
        function = torch._C._create_function_from_graph("recorded", self._graph)
        return [_Function(function, [tensor for tensor, _ in self._tensors.values()])]


class _Function:
    """A graph of which a function was made, and the tensors that it works on.

    They are a list of TorchScript, which holds them: torch takes the GIL whenever it lets go of a
    tensor that nobody but Python has, so of each one of a list of Python in each call.
    """

    def __init__(self, function: Callable[[Any], None], tensors: list[Tensor]) -> None:
        self.function, self.tensors = function, tensors  # each [...]
        self._held = torch._C.ScriptList(tensors) if tensors else tensors

    def __call__(self) -> None:
        # As `torch.jit.optimized_execution` does, which takes longer than some programs.
        before = _optimizes()
        _optimize(False)
        try:
            self.function(self._held)
        finally:
            _optimize(before)

    def moved(self, change: Change) -> _Function:
        """As of `Call`."""
        return _Function(self.function, [change(tensor) for tensor in self.tensors])


def changed(part: Any, change: Change) -> Any:
    """An argument of an operation, with what `change` makes of each tensor. Raises what it does."""
    if isinstance(part, Tensor):
        return change(part)
    if isinstance(part, list | tuple):
        return type(part)(changed(each, change) for each in part)
    return part


_TENSOR = torch._C.TensorType.get()
_optimizes = torch._C._get_graph_executor_optimize
_optimize = torch._C._set_graph_executor_optimize
_COPY = torch.ops.aten.copy_.default
