"""A GPU that is not there: torch's device `emulated`, with a GPU's rules and a CPU's arithmetic.

Its tensors wrap CPU tensors. Every operation on them is done on what they wrap, so results are
those of the CPU, to the bit. What a GPU would refuse, or make the host wait for, raises
`Misplaced`: always, that tensors of host and device meet in one operation; within an op of a step,
by `Placed`,

- in a device op, a question to the device (a number for the host, a shape that depends on data), a
  copy that is not asynchronous (pageable or scattered host memory, or not asked for), and any
  arithmetic or allocation on the host, which would not be in the stream's order;
- in a host op, anything with a tensor of the device.

What is asked is read off torch's own schemas and tags, not off the names that checking mode knows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from stepweave.backends import NoDevice, backend_named
from stepweave.backends.dispatch import Dispatch
from stepweave.backends.operations import asks, composed, is_composite, is_view
from stepweave.executors.report import RunReport
from stepweave.executors.run import Executor
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import Op, OpContext
from stepweave.graph.plan import Plan
from stepweave.graph.step_graph import Vertex
from stepweave.testing.devices.virtual_streams import VirtualStreams

Side = Literal["host", "device"]


class Misplaced(Exception):
    """What a GPU would refuse, or wait for. `rule` is which one."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class _Here(threading.local):
    side: Side | None = None


class _Switch:
    """Of the process: whether a question to the device raises, in ops and outside of them."""

    forbids = False


HERE, SWITCH = _Here(), _Switch()
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
SIZED = {"aten::repeat_interleave"}


class Emulated(Tensor):
    """A tensor of the device. `held`: the CPU tensor that it wraps, with the same geometry."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> Emulated:
        assert not isinstance(inner, Emulated), "a tensor of the device wraps one of the host"
        with torch.inference_mode(False):  # a view of an ordinary wrapper has to be ordinary
            made: Any = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=DEVICE,
                requires_grad=False,
            )
        made.held = inner
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Emulated({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return perform(operation, args, kwargs or {})


def perform(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Do the operation on what the tensors wrap; the result is on the device."""
    if HERE.side == "host":
        raise Misplaced("host op on the device", f"{operation} in a host op")
    if SWITCH.forbids and _asks(operation, args, kwargs):
        raise Misplaced("asks the device", f"{operation} needs a value on the host")
    if is_composite(operation):
        return composed(operation, args, kwargs)
    if operation in COPIES:
        return _copy(operation, args, kwargs)
    wrappers: dict[int, Emulated] = {}
    for tensor in _tensors(args, kwargs):
        if isinstance(tensor, Emulated):
            wrappers[id(tensor.held)] = tensor
        else:
            # torch moves a number over by a copy from pageable memory, where it is no argument.
            by_value = tensor.dim() == 0 and torch.Tag.pointwise in operation.tags
            if not by_value or operation.overloadpacket is torch.ops.aten.where:
                raise Misplaced(
                    "mixed", f"{operation} of a tensor of the host and one of the device"
                )
    inner = {name: _inner(each) for name, each in kwargs.items()}
    if kwargs.get("device") is not None:
        inner["device"] = torch.device("cpu")
    found = operation(*map(_inner, args), **inner)
    for wrapper in wrappers.values():
        assert wrapper.shape == wrapper.held.shape, f"{operation} changed a shape in place"

    def outer(datum: Any) -> Any:
        if isinstance(datum, tuple | list):
            return type(datum)(map(outer, datum))
        if not isinstance(datum, Tensor):
            return datum
        known = wrappers.get(id(datum))
        return Emulated(datum) if known is None else known

    return outer(found)


def _tensors(args: Any, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments, and in lists of them."""
    found: list[Tensor] = []
    for each in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, tuple | list):
            found += [part for part in each if isinstance(part, Tensor)]
    return found


def _inner(argument: Any) -> Any:
    if isinstance(argument, Emulated):
        return argument.held
    if isinstance(argument, tuple | list):
        return type(argument)(map(_inner, argument))
    return argument


def _copy(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """`copy_` and `to`, in both directions and within the device."""
    if operation is torch.ops.aten.copy_.default:
        operation(_inner(args[0]), _inner(args[1]), *args[2:], **kwargs)
        return args[0]
    target = kwargs.get("device") or args[0].device
    copied = operation(_inner(args[0]), **{**kwargs, "device": torch.device("cpu")})
    return Emulated(copied) if target.type == DEVICE.type else copied


class _Unavailable:
    """What torch asks a device's module: it is there, but nobody should choose it by himself."""

    __name__ = "torch.emulated"  # `generate_batch` asks for it

    def is_available(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It draws no random numbers of torch's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def _register() -> tuple[Any, ...]:
    """Make torch know the device; it can be done once in a process."""
    from torch.utils import backend_registration

    backend_registration._setup_privateuseone_for_python_backend(
        "emulated", backend_module=_Unavailable()
    )
    new: Any = torch.library.Library
    library = new("_", "IMPL")

    def fallback(operation: Any, *args: Any, **kwargs: Any) -> Any:
        return perform(operation, args, kwargs)

    library.fallback(fallback, "PrivateUse1")
    # These would make an empty tensor first and resize it, which no wrapper follows.
    aten = new("aten", "IMPL")
    ranges = torch.ops.aten.arange
    for operation in (
        ranges.default,
        ranges.start,
        ranges.start_step,
        torch.ops.aten.linspace.default,
    ):
        aten.impl(operation, partial(fallback, operation), "PrivateUse1")
    return library, aten


_LIBRARIES = _register()


# --- its backend, as an installed package brings one


class EmulatedBackend:
    """What Stepweave has to know of the device. Its streams work late, by chance, from a seed."""

    name = "emulated"
    on_host = False
    has_streams = True
    captures = False
    compiles_triton = False

    def __init__(self) -> None:
        self.free: int | None = None  # bytes of memory; a test may say how many
        self._pinned: dict[int, Tensor] = {}  # by address, and alive so that it stays theirs
        self._opened: list[VirtualStreams] = []

    def found(self) -> Sequence[str]:
        return ("a device that is not there",)

    def device(self, name: str) -> torch.device:
        if name not in ("emulated", "emulated:0"):
            raise NoDevice(f"there is no device {name!r}: only emulated:0")
        return torch.device("emulated", 0)

    def entered(self, device: torch.device) -> nullcontext[None]:
        return nullcontext()

    def synchronize(self, device: torch.device | None = None) -> None:
        for streams in self._opened:
            streams.close(None)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype, fill: int) -> Tensor:
        """There is no pinned memory without a GPU: so it is written down which it would be."""
        made = torch.full(tuple(shape), fill, dtype=dtype)
        self._pinned[made.untyped_storage().data_ptr()] = made
        return made

    def has_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def streams(self, device: torch.device, *, ranges: bool = False) -> VirtualStreams:
        self._opened.append(VirtualStreams(Random(len(self._opened))))
        return self._opened[-1]

    def forbid_waits(self) -> Callable[[], None]:
        """Outside of ops too, which is where `Placed` looks."""
        SWITCH.forbids = True

        def allow() -> None:
            SWITCH.forbids = False

        return allow

    def refused(self, error: BaseException) -> bool:
        return isinstance(error, Misplaced) and error.rule == "asks the device"

    def free_bytes(self, device: torch.device) -> int | None:
        return self.free

    def processors(self, device: torch.device) -> int:
        return 1

    def why_no_varlen(self, device: torch.device) -> str:
        return "torch has none for a device that is not there"


BACKEND = EmulatedBackend()
DEVICE = torch.device("emulated", 0)

SITE = Path(__file__).with_name("site")  # holds the metadata that an installer leaves


@contextmanager
def is_installed() -> Iterator[None]:
    """The package is on the path: its name is listed, and pipeline files may have it."""
    sys.path.append(str(SITE))
    try:
        yield
    finally:
        sys.path.remove(str(SITE))


with (
    is_installed()
):  # found by its entry point once, it stays known; others' lists stay as they are
    assert backend_named("emulated") is BACKEND


# --- what an op of a step may do


class DeviceOp(Dispatch):
    """The rules of a device op, for the thread that runs it."""

    def __torch_dispatch__(
        self, operation: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_composite(operation):
            with self:
                return composed(operation, args, kwargs)
        if _asks(operation, args, kwargs):
            raise Misplaced("asks the device", f"{operation} needs a value on the host")
        tensors = _tensors(args, kwargs)
        host = [t for t in tensors if not isinstance(t, Emulated)]
        if operation in COPIES:
            self._check_copy(operation, args, kwargs)
        elif host and len(host) == len(tensors) and not is_view(operation):
            raise Misplaced("computes on the host", f"{operation} of a tensor of the host")
        elif not tensors and (kwargs.get("device") or torch.device("cpu")).type == "cpu":
            raise Misplaced("allocates on the host", f"{operation} without a device")
        return operation(*args, **kwargs)

    def _check_copy(self, operation: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        if operation is torch.ops.aten.copy_.default:
            source, target = args[1], args[0]
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            ends = [source, target]
        else:
            source, non_blocking = args[0], kwargs.get("non_blocking", False)
            to = kwargs.get("device") or source.device
            if to.type == "cpu" and not kwargs.get("pin_memory"):
                raise Misplaced("pageable copy", f"{operation} to new memory of the host")
            ends = [source]
        host = [end for end in ends if not isinstance(end, Emulated)]
        if not host:
            return
        if len(host) == len(ends) == 2:
            raise Misplaced("computes on the host", f"{operation} from host to host")
        if not non_blocking:
            raise Misplaced("waiting copy", f"{operation} without non_blocking")
        if not BACKEND.has_pinned(host[0]):
            raise Misplaced("pageable copy", f"{operation} of memory that is not pinned")
        if not host[0].is_contiguous():
            raise Misplaced("scattered copy", f"{operation} of {host[0].stride()} on the host")


def _asks(operation: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    sized = operation.name().partition(".")[0] in SIZED and kwargs.get("output_size") is not None
    return not sized and asks(operation, args)


@contextmanager
def side(which: Side | None) -> Iterator[None]:
    before, HERE.side = HERE.side, which
    try:
        yield
    finally:
        HERE.side = before


@dataclass(frozen=True)
class Placed:
    """An executor: another one, with the rules above in every op."""

    executor: Executor

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        return self.executor(replace(plan, graph=plan.graph.with_ops(self._placed)), given)

    def _placed(self, vertex: Vertex) -> Op:
        op, body = vertex.op, vertex.op.run
        if body is None:
            return op

        def run(context: OpContext) -> None:
            with side(vertex.side):
                if vertex.side == "host":
                    body(context)
                else:
                    with DeviceOp():
                        body(context)

        return replace(op, run=run)
