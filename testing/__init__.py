"""What finds faults in plans and nodes, ours and yours. Each name is loaded when first used.

Checking mode, devices that are not there, every interleaving that a plan permits, faults on
purpose, random graphs, and small random models and engines. Nothing here needs a GPU, weights, or
a test runner.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]

    from .adapters import save_adapter as save_adapter
    from .checking.mode import Strict as Strict
    from .contract import backend_faults as backend_faults
    from .decode import decode_step as decode_step
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
    from .histories import recorded_states as recorded_states
    from .histories import recording as recording
    from .models import save_tiny as save_tiny
    from .models import tiny_model as tiny_model
    from .models import tiny_tokenizer as tiny_tokenizer
    from .unverified import Unverified as Unverified
    from .unverified import run_unverified as run_unverified
    from .vision import save_tiny_vision as save_tiny_vision
else:
    from ..graph.public import door

    __getattr__, __dir__ = door(__name__)
