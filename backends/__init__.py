"""Kinds of devices: what differs between them, each in a file of its own.

backend.py       what a backend brings
streams.py       its streams, events and captured work
registry.py      the backends there are, by name and by device
kernels.py       which kernels run on a device: the one switch
shipped/         a file for each backend that comes with Stepweave
cuda_streams.py  the streams of CUDA devices
"""

from .backend import Backend
from .errors import NoDevice
from .registry import backend_named, backend_of, device_called

__all__ = ["Backend", "NoDevice", "backend_named", "backend_of", "device_called"]
