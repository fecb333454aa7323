"""Kinds of devices: what differs between them, each in a file of its own. Names load when used.

backend.py         what a backend brings
streams.py         its streams, events and captured work
registry.py        the backends there are, by name and by device
executor_names.py  the executors there are, by name: on host threads, or on a backend's streams
kernels.py         which kernels run on a device: the one switch
shipped/           a file for each backend that comes with Stepweave
cuda_streams.py    the streams of CUDA devices
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from .backend import Backend as Backend
    from .errors import NoDevice as NoDevice
    from .registry import backend_named as backend_named
    from .registry import backend_of as backend_of
    from .registry import device_called as device_called
    from .streams import CannotCapture as CannotCapture
    from .streams import Event as Event
    from .streams import Recording as Recording
    from .streams import Stream as Stream
    from .streams import Streams as Streams
else:
    from ..graph.public import door

    __getattr__, __dir__ = door(__name__)
