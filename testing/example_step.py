"""Step graphs to study: the decode step with its usual accesses and assumed costs, no code.

What is shown here is the shape of the dependences, so the ops do nothing. Costs are round numbers
for an 8B model on one GPU, in µs.
"""

from __future__ import annotations

from typing import Literal

from ..graph import arguments
from ..graph.node import Node, Op, Place, Read, Value
from ..graph.step_graph import StepGraph


def decode_step(
    depth: int = 2,
    *,
    speculation: bool = True,
    grammar: bool = True,
    order: Literal["keep", "search"] = "keep",
) -> StepGraph:
    """The decode step with at most `depth` steps in flight; depth 1 is the synchronous loop.

    Depth is only where `schedule` stands: after the commit of step i − depth and before that of
    step i − depth + 1. Tokens and drafts reach the next step on the device; `commit` and
    `bitmask` see copies of them, made on a stream of their own. Raises `GraphError` if `depth` is
    not a whole number from 1 on.
    """
    arguments.whole("decode_step", "depth", depth, 1)
    nodes = {node.name: node for node in _nodes(depth, speculation, grammar)}
    return StepGraph.build(
        [nodes[name] for name in _listing(depth) if name in nodes],
        _values(speculation, grammar),
        ["requests", "kv", *(["drafter_kv"] if speculation else [])]
        + (["matchers"] if grammar else []),
        order=order,
        name=f"decode, depth {depth}",
    )


def _listing(depth: int) -> list[str]:
    """The serial program, one iteration of it; commit acts on the step before (offset 1)."""
    loop = ["prepare_inputs", "forward", "commit", "bitmask", "sample", "draft", "d2h_copy"]
    if depth == 1:
        return ["commit", "schedule", *(name for name in loop if name != "commit")]
    if depth == 2:
        return ["schedule", *loop]
    if depth == 3:
        return [*loop[:2], "schedule", *loop[2:]]  # schedule acts on the step after (offset −1)
    raise ValueError(f"depth is 1, 2 or 3, not {depth}")


def _nodes(depth: int, speculation: bool, grammar: bool) -> list[Node]:
    drafts = ("drafts",) if speculation else ()
    mask = ("mask",) if grammar else ()
    return [
        Node(
            "schedule",
            (Op(_reads("requests"), ("batch", "requests"), cost_us=300),),
            offset=-1 if depth == 3 else 0,
        ),
        _device(
            "prepare_inputs",
            Op(_reads("batch"), ("staging",), cost_us=400),
            Op(
                (*_reads("staging", "sampled@-1"), *_back(drafts)),
                ("inputs",),
                cost_us=30,
            ),
        ),
        _device(
            "forward",
            Op(_reads("batch"), cost_us=150),
            Op(_reads("inputs", "kv"), ("logits", "hidden", "kv"), cost_us=4000),
        ),
        Node(
            "commit",
            (
                Op(
                    _reads("batch", "copied", *(["matchers"] if grammar else [])),
                    ("advanced", "matchers") if grammar else (),
                    phase="advance",
                    cost_us=150,
                ),
                Op(
                    _reads("batch", "copied", "requests"),
                    ("requests",),
                    phase="finish",
                    cost_us=250,
                ),
            ),
            offset=1,
        ),
        *([_bitmask(drafts)] if grammar else []),
        _device(
            "sample",
            Op(cost_us=60),
            Op((*_reads("logits", *mask), *_back(drafts)), ("sampled",), cost_us=150),
        ),
        *([_draft()] if speculation else []),
        _device(
            "d2h_copy",
            Op(cost_us=30),
            Op(_reads("sampled", *drafts), ("copied",), cost_us=40),
            stream="copy",
        ),
    ]


def _bitmask(drafts: tuple[str, ...]) -> Node:
    """Fill the masks through the draft window, and copy them to the device.

    It advances the matchers and rolls them back, so it writes them.
    """
    copies = ("copied@-1",) if drafts else ()
    return _device(
        "bitmask",
        Op(
            _reads("batch", "advanced@-1", "matchers", *copies),
            ("mask_staging", "matchers"),
            cost_us=400,
        ),
        Op(_reads("mask_staging"), ("mask",), cost_us=10),
    )


def _draft() -> Node:
    return _device(
        "draft",
        Op(cost_us=80),
        Op(_reads("hidden", "sampled", "drafter_kv"), ("drafts", "drafter_kv"), cost_us=600),
    )


def _values(speculation: bool, grammar: bool) -> list[Value]:
    places: dict[str, Place] = {
        "batch": "host",
        "staging": "pinned",
        "inputs": "device",
        "logits": "device",
        "hidden": "device",
        "sampled": "device",
        "copied": "pinned",
    }
    if speculation:
        places["drafts"] = "device"
    if grammar:
        places |= {"advanced": "host", "mask_staging": "pinned", "mask": "device"}
    return [
        Value(name, place, Value.default_storage(place, None)) for name, place in places.items()
    ]


def _device(name: str, host: Op, device: Op, stream: str = "compute") -> Node:
    return Node(name, (host,), (device,), stream=stream)


def _reads(*names: str) -> tuple[Read, ...]:
    """`sampled@-1` is the version of the step before."""
    pairs = (name.partition("@-") for name in names)
    return tuple(Read(name, int(back or 0)) for name, _, back in pairs)


def _back(names: tuple[str, ...]) -> tuple[Read, ...]:
    return tuple(Read(name, 1) for name in names)
