"""Decode steps as declared dataflow. The public names; each is loaded when first used.

Nothing is imported before it is asked for: `import stepweave` loads no torch, and a copy of this
file that a test runner imports under another name loads no second copy of our code.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

    from .configs.load import load_config as load_config
    from .configs.schema import PipelineConfig as Pipeline
    from .executors.run import run as run
    from .graph.declare import node as node
    from .graph.declare import step_graph as step_graph
    from .graph.declare import value as value
    from .graph.errors import DeadlockError as DeadlockError
    from .graph.errors import GraphError as GraphError
    from .graph.errors import StepweaveError as StepweaveError
    from .graph.errors import UnsoundPlan as UnsoundPlan
    from .graph.immutable import immutable as immutable
    from .graph.node import Node as Node
    from .graph.node import Op as Op
    from .graph.node import OpContext as OpContext
    from .graph.node import Read as Read
    from .graph.node import State as State
    from .graph.node import Value as Value
    from .graph.plan import Plan as Plan
    from .graph.planner.compile import compile_plan as compile_plan
    from .graph.step_graph import StepGraph as StepGraph
    from .graph.verifier.verify import verify as verify
    from .nodes.kind import Built as Built
    from .nodes.kind import NodeKind as NodeKind
    from .nodes.kind import NodeSpec as NodeSpec
    from .requests.request import RequestOutput as RequestOutput
    from .requests.request import SamplingParams as SamplingParams
    from .serving.llm import LLM as LLM
    from .serving.llm import Interrupted as Interrupted
    from .serving.streaming import TextPiece as TextPiece
    from .timelines.simulated import simulate as simulate
    from .views.dot import dot as dot
    from .views.lanes import lanes as lanes

# Public name -> module, or module:name where the two names differ.
_HOME = {
    "LLM": "serving.llm",
    "Built": "nodes.kind",
    "DeadlockError": "graph.errors",
    "GraphError": "graph.errors",
    "Interrupted": "serving.llm",
    "Node": "graph.node",
    "NodeKind": "nodes.kind",
    "NodeSpec": "nodes.kind",
    "Op": "graph.node",
    "OpContext": "graph.node",
    "Pipeline": "configs.schema:PipelineConfig",
    "Plan": "graph.plan",
    "Read": "graph.node",
    "RequestOutput": "requests.request",
    "SamplingParams": "requests.request",
    "State": "graph.node",
    "StepGraph": "graph.step_graph",
    "StepweaveError": "graph.errors",
    "TextPiece": "serving.streaming",
    "UnsoundPlan": "graph.errors",
    "Value": "graph.node",
    "compile_plan": "graph.planner.compile",
    "dot": "views.dot",
    "immutable": "graph.immutable",
    "lanes": "views.lanes",
    "load_config": "configs.load",
    "node": "graph.declare",
    "run": "executors.run",
    "simulate": "timelines.simulated",
    "step_graph": "graph.declare",
    "value": "graph.declare",
    "verify": "graph.verifier.verify",
}
__all__ = [
    "LLM",
    "Built",
    "DeadlockError",
    "GraphError",
    "Interrupted",
    "Node",
    "NodeKind",
    "NodeSpec",
    "Op",
    "OpContext",
    "Pipeline",
    "Plan",
    "Read",
    "RequestOutput",
    "SamplingParams",
    "State",
    "StepGraph",
    "StepweaveError",
    "TextPiece",
    "UnsoundPlan",
    "Value",
    "compile_plan",
    "dot",
    "immutable",
    "lanes",
    "load_config",
    "node",
    "run",
    "simulate",
    "step_graph",
    "value",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version(__name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(import_module(f".{module}", __name__), attribute or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
