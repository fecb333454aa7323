"""Decode steps as declared dataflow. The public names; each is loaded when first used.

Nothing is imported before it is asked for: `import stepweave` loads no torch, and a copy of this
file that a test runner imports under another name loads no second copy of our code.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __all__: list[str]
    __version__: str

    from .configs.costs import load_costs as load_costs
    from .configs.load import load_config as load_config
    from .configs.schema import Pipeline as Pipeline
    from .executors.run import run as run
    from .graph.answers.between import between as between
    from .graph.answers.between import ops_named as ops_named
    from .graph.answers.difference import difference as difference
    from .graph.answers.explain import explain_wait as explain_wait
    from .graph.answers.sensitivity import sensitivities as sensitivities
    from .graph.answers.whatif import with_costs as with_costs
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
    from .graph.parameters import read as read
    from .graph.parameters import update as update
    from .graph.plan import Plan as Plan
    from .graph.planner.compile import compile_plan as compile_plan
    from .graph.step_graph import StepGraph as StepGraph
    from .graph.verifier.verify import verify as verify
    from .requests.increment import Increment as Increment
    from .requests.request import RequestOutput as RequestOutput
    from .requests.request import SamplingParams as SamplingParams
    from .serving.async_llm import AsyncLLM as AsyncLLM
    from .serving.async_llm import AsyncStream as AsyncStream
    from .serving.call import TextPiece as TextPiece
    from .serving.llm import LLM as LLM
    from .serving.llm import Interrupted as Interrupted
    from .timelines.simulated import simulate as simulate
    from .views.dot import dot as dot
    from .views.lanes import lanes as lanes
    from .views.page import plan_page as plan_page
    from .views.perfetto import perfetto as perfetto
    from .views.timeline_page import timeline_page as timeline_page
    from .views.traced import Trace as Trace


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    from .graph.public import load

    return load(__name__, name)


def __dir__() -> list[str]:
    from .graph.public import names

    return sorted({*globals(), *names(__name__)})
