"""What finds faults in plans and nodes, ours and yours. Each name is loaded when first used.

Checking mode, devices that are not there, every interleaving that a plan permits, faults on
purpose, random graphs, and small random models and engines. Nothing here needs a GPU, weights, or
a test runner.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .checking.mode import Strict as Strict
    from .contract import backend_faults as backend_faults
    from .devices.delayed_kernels import DelayedKernels as DelayedKernels
    from .devices.virtual_streams import Deferred as Deferred
    from .engines import TinyConfig as TinyConfig
    from .engines import serve as serve
    from .engines import tiny_engine as tiny_engine
    from .engines import tiny_requests as tiny_requests
    from .exploring.campaign import campaign as campaign
    from .exploring.explorer import InterleavingFailed as InterleavingFailed
    from .exploring.explorer import explore as explore
    from .exploring.explorer import explore_exhaustively as explore_exhaustively
    from .exploring.explorer import replay as replay
    from .exploring.nodes import Interleaved as Interleaved
    from .exploring.nodes import explore_nodes as explore_nodes
    from .faults import InjectedFault as InjectedFault
    from .faults import with_faults as with_faults
    from .graphs import random_step_graph as random_step_graph
    from .models import save_tiny as save_tiny
    from .models import tiny_model as tiny_model
    from .models import tiny_tokenizer as tiny_tokenizer
    from .recording import recorded_states as recorded_states
    from .recording import recording as recording
    from .unverified import Unverified as Unverified
    from .unverified import run_unverified as run_unverified

_HOME = {
    "Deferred": "devices.virtual_streams",
    "InjectedFault": "faults",
    "Interleaved": "exploring.nodes",
    "InterleavingFailed": "exploring.explorer",
    "DelayedKernels": "devices.delayed_kernels",
    "Strict": "checking.mode",
    "TinyConfig": "engines",
    "Unverified": "unverified",
    "backend_faults": "contract",
    "campaign": "exploring.campaign",
    "explore": "exploring.explorer",
    "explore_exhaustively": "exploring.explorer",
    "explore_nodes": "exploring.nodes",
    "random_step_graph": "graphs",
    "recorded_states": "recording",
    "recording": "recording",
    "replay": "exploring.explorer",
    "run_unverified": "unverified",
    "save_tiny": "models",
    "serve": "engines",
    "tiny_engine": "engines",
    "tiny_model": "models",
    "tiny_requests": "engines",
    "tiny_tokenizer": "models",
    "with_faults": "faults",
}
__all__ = [
    "Deferred",
    "DelayedKernels",
    "InjectedFault",
    "Interleaved",
    "InterleavingFailed",
    "Strict",
    "TinyConfig",
    "Unverified",
    "backend_faults",
    "campaign",
    "explore",
    "explore_exhaustively",
    "explore_nodes",
    "random_step_graph",
    "recorded_states",
    "recording",
    "replay",
    "run_unverified",
    "save_tiny",
    "serve",
    "tiny_engine",
    "tiny_model",
    "tiny_requests",
    "tiny_tokenizer",
    "with_faults",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
