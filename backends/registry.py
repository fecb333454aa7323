"""The backends there are: those of the folder `shipped`, and those that installed packages bring.

A backend is found by the type of its devices. Names and kinds of devices can be asked for without
torch, so a pipeline file is checked without it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from ..graph.entry_points import load, registered
from ..graph.errors import did_you_mean
from .backend import Backend
from .errors import NoDevice

if TYPE_CHECKING:
    import torch

GROUP = "stepweave.backends"
HOST = "cpu"  # what torch calls the host itself

_loaded: dict[str, Backend] = {}


def backend_of(device: torch.device) -> Backend:
    """The backend of a device. Raises `NoDevice` if there is none."""
    found = _loaded.get(device.type)  # no function that caches: compilers look into this
    return backend_named(device.type) if found is None else found


def backend_named(name: str) -> Backend:
    """The backend whose devices torch calls `name`. Raises `NoDevice` if there is none."""
    if name not in _loaded:
        _loaded[name] = _load(name)
    return _loaded[name]


def backend_of_name(device: str) -> Backend:
    """The backend of a device's name, such as `cpu`. Raises `NoDevice` if there is none."""
    kind, colon, number = device.partition(":")
    found = backend_named(kind)
    if colon and (found.on_host or not (number.isdecimal() and len(number) <= 3)):
        wanted = "has no numbers" if found.on_host else "takes a number after the colon"
        raise NoDevice(f"{device[:60]!r} is not a device: {kind!r} {wanted}")
    return found


def device_called(name: str) -> torch.device:
    """The device of that name, with its number.

    Raises:
        NoDevice: no backend has such devices, or the device is not there.
    """
    return backend_of_name(name).device(name)


def known_backends() -> tuple[str, ...]:
    """The names of all backends, those of installed packages last. Loads no code of packages."""
    brought = sorted(point.name for point in registered(GROUP))
    return (*_shipped(), *(name for name in brought if name not in _shipped()))


def with_streams() -> tuple[str, ...]:
    """The names of all backends that may have streams. Loads no code of packages."""
    return tuple(
        name
        for name in known_backends()
        if name not in _shipped() or backend_named(name).has_streams
    )


def nearest_device(name: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)`, or the `known` names of devices, as `did_you_mean` says it.

    What people call a device by what it is, and not by its maker's interface, is spelt nearly as
    the host.
    """
    if name.partition(":")[0].lower() == "gpu":
        known = [each for each in known if each in _shipped() and not backend_named(each).on_host]
        return f" (did you mean {known[0]!r}?)" if known else ""
    return did_you_mean(name, known)


def loaded_backends() -> Sequence[Backend]:
    """Every backend that something in this process may have used."""
    for name in _shipped():
        backend_named(name)
    return [*_loaded.values()]


@cache
def _shipped() -> tuple[str, ...]:
    folder = Path(__file__).with_name("shipped")
    return tuple(sorted(module.name for module in iter_modules([str(folder)])))


def _load(name: str) -> Backend:
    if name in _shipped():
        found: Backend = import_module(f".shipped.{name}", __package__).BACKEND
        return found
    for point in registered(GROUP):
        if point.name == name:
            return load(point, "backend", partial(_checked, name), NoDevice)
    known = known_backends()
    raise NoDevice(
        f"there is no device {name[:60]!r}{nearest_device(name, known)}; there are backends for "
        f"{', '.join(known)}"
    )


def _checked(name: str, found: Any) -> Backend:
    if isinstance(found, type) or not isinstance(found, Backend):
        raise NoDevice(f"it must name a Backend, not {type(found).__name__} {found!r:.60}")
    if found.name != name:
        raise NoDevice(f"it is called {found.name!r}: entry point and backend share one name")
    return found
