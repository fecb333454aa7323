"""A pipeline that leaves a node's thread open runs on the one that is chosen, with equal tokens."""

from __future__ import annotations

from stepweave import LLM
from stepweave.requests.request import SamplingParams

SLOW_MASKS = {"bitmask.host": 9000.0, "schedule.host": 2000.0, "forward.device": 9000.0}


def outputs(**overrides: object) -> tuple[list[list[int]], str, str]:
    """Tokens, the thread of the node, and what the plan says of it."""
    shape = {"structured_outputs": {"regex": "[a-z ]{8,40}"}}
    with LLM(pipeline="async_grammar", overrides=overrides) as llm:
        found = llm.generate(["A fox", "Two"], SamplingParams(max_tokens=8, **shape))  # type: ignore[arg-type]
        (bitmask,) = (node for node in llm.plan.graph.nodes if node.name == "bitmask")
        said = "; ".join(note for note in llm.plan.notes if note.startswith("placement"))
    assert not any(each.error for each in found)
    return [list(each.token_ids) for each in found], bitmask.actor, said


def test_a_node_runs_on_the_thread_that_is_chosen_and_tokens_are_the_same() -> None:
    tokens, thread, said = outputs()
    assert (thread, said) == ("driver", "")
    chosen, thread, said = outputs(**{"nodes.bitmask.actor": "auto", "costs": SLOW_MASKS})
    assert thread == "grammar"
    assert said.startswith("placement: node 'bitmask' is on thread 'grammar'")
    assert chosen == tokens
