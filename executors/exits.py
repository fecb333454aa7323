"""Calls by which code gets at a tensor's numbers or memory without an operation of torch.

No dispatch mode sees `Tensor.numpy`, `tolist` or `data_ptr`, and on a CPU `cpu` is no operation. So
while somebody wants to know, these few functions are replaced by wrappers that tell the thread's
own listener, and then do what they did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Listener = Callable[[str, Sequence[Any], Mapping[str, Any]], None]  # name, args, kwargs; may raise

NUMBERS = (
    "numpy",
    "tolist",
    "item",
    "__array__",
    "__dlpack__",
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
)
"""Methods of a tensor that give its numbers to the host."""

FACTORIES = ("tensor", "as_tensor")
"""Functions of torch that copy from pageable memory."""

_METHODS = (*NUMBERS, "cpu", "to", "data_ptr")
_here = threading.local()  # `listener`: that of what this thread runs
_exits = threading.Lock()
_runs = 0
_before: list[tuple[Any, str, Any]] = []


@contextmanager
def watched_exits() -> Iterator[None]:
    """While anybody is within, the calls that leave torch tell of it.

    They are replaced for that long, and by wrappers that look for a listener of their own thread. A
    function mode of torch would see them too, but is called for every function of torch there is,
    down to `Tensor.shape`, which makes checking mode slower by a quarter; and what was compiled
    without one would be compiled anew.
    """
    global _runs
    with _exits:
        if _runs == 0:
            for owner, names in ((Tensor, _METHODS), (torch, FACTORIES)):
                for name in names:
                    _before.append((owner, name, vars(owner).get(name)))
                    setattr(owner, name, _telling(name, getattr(owner, name)))
        _runs += 1
    try:
        yield
    finally:
        with _exits:
            _runs -= 1
            while _runs == 0 and _before:
                owner, name, own = _before.pop()
                if own is None:
                    delattr(owner, name)  # it was inherited
                else:
                    setattr(owner, name, own)


class telling:
    """Within it, this thread's calls that leave torch are told to the listener alone."""

    __slots__ = ("_listener", "_outer")

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __enter__(self) -> None:
        self._outer: Listener | None = getattr(_here, "listener", None)
        _here.listener = self._listener

    def __exit__(self, *raised: object) -> None:
        _here.listener = self._outer


def _telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def tell(*args: Any, **kwargs: Any) -> Any:
        listener: Listener | None = getattr(_here, "listener", None)
        if listener is not None:
            listener(name, args, kwargs)
        return function(*args, **kwargs)

    return tell
