"""A step graph to study: the decode step of a shipped pipeline, with assumed costs."""

from __future__ import annotations

from typing import Literal

from ..configs.load import load_config
from ..configs.schema import PipelineConfig
from ..graph.step_graph import StepGraph
from ..serving.pipeline import step_graph

HOST_US = {
    "schedule": 300,
    "prepare_inputs": 400,
    "forward": 150,
    "bitmask": 400,
    "sample": 60,
    "draft": 80,
    "d2h_copy": 30,
    "commit": 200,  # of each of its two phases
}
DEVICE_US = {
    "prepare_inputs": 30,
    "forward": 4000,
    "bitmask": 10,
    "sample": 150,
    "draft": 600,
    "d2h_copy": 40,
}


def decode_step(
    depth: int = 2,
    *,
    speculation: bool = True,
    grammar: bool = True,
    order: Literal["keep", "search"] = "search",
) -> StepGraph:
    """The decode step of pipeline `quickstart`, with round costs for an 8B model on one GPU.

    At most `depth` steps are in flight; depth 1 is the synchronous loop. `speculation` and
    `grammar` say whether the nodes `draft` and `bitmask` are there. No model is loaded. Raises
    `ConfigError` if `depth` is not a whole number from 1 on.
    """
    left_out = [name for name, kept in (("draft", speculation), ("bitmask", grammar)) if not kept]
    keys = {"depth": str(depth), "order": order}
    for side, costs in (("host", HOST_US), ("device", DEVICE_US)):
        keys |= {
            f"nodes.{name}.{side}_cost_us": str(us)
            for name, us in costs.items()
            if name not in left_out
        }
    keys |= {f"nodes.{name}": "null" for name in left_out}
    config = load_config("quickstart", keys)
    assert isinstance(config, PipelineConfig), "a pipeline, not an abstract graph"
    return step_graph(config)
