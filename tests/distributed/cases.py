"""Pipelines with requests, drawn from a seed: what one rank and several must serve alike."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import sleep
from typing import Any

from stepweave import LLM
from stepweave.requests.request import RequestOutput

DRAFTERS: Mapping[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"kind": "draft_model", "after": "sample", "tokens": 3},
    "eagle": {"kind": "eagle", "after": "sample", "tokens": 3},
    "eagle3": {"kind": "eagle3", "after": "sample", "tokens": 3},
    "ngram": {"kind": "ngram", "after": "sample", "tokens": 2},
}
IN_PAIRS: Mapping[str, dict[str, Any]] = {
    "mtp": {"kind": "mtp", "after": "sample", "tokens": 3, "model": "embedded-mtp"},
    "medusa": {"kind": "medusa", "after": "sample", "tokens": 3, "model": "embedded-medusa"},
    "suffix": {"kind": "suffix", "after": "sample", "tokens": 3, "actor": "suffix"},
    "forced": {"kind": "ngram", "after": "sample", "tokens": 4},  # and what a grammar forces
    "tree": {"kind": "eagle3", "after": "sample", "tree": [[0], [1], [0, 0], [0, 1], [1, 0]]},
    "grown": {
        "kind": "mtp",
        "after": "sample",
        "model": "embedded-mtp",
        "tree": {"width": 2, "depth": 3, "children": 3, "among": "all"},
        "tokens": 6,
    },
}
"""Drafters that meet every grammar, traffic and depth, but not every combination of these."""

GRAMMARS = ("none", "schema", "mixed")
TRAFFIC = ("at once", "jittered", "cancelled", "preempted", "prefixes")
WITH_SWAP = (*TRAFFIC, "swapped")
DEPTHS = (1, 2, 3)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXTS = ("a fox", "a dog and a cat", "two friends who met by the river", "Ida", "rain")


@dataclass(frozen=True)
class Case:
    """One pipeline and its load; every random choice comes from `seed`."""

    drafter: str = "none"
    grammar: str = "none"
    traffic: str = "at once"
    depth: int = 2
    executor: str = "threads"
    seed: int = 0
    divided: str = "tensor"  # how several ranks share the model

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Case:
        return cls(**data)

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def pipeline(self) -> str:
        masked = self.grammar != "none" or self.drafter == "forced"
        return "async_grammar" if masked else "async"

    def overrides(self, ranks: int) -> dict[str, Any]:
        """What the pipeline's file is to say."""
        blocks = 24 if self.traffic in ("preempted", "swapped") else 256
        found: dict[str, Any] = {
            "model": {"dtype": "float64", "invariant": False, "parallel": {self.divided: ranks}},
            "scheduler": {
                "max_rows": 4,
                "num_blocks": blocks,
                "block_size": 8,
                "prefix_cache": self.traffic == "prefixes",
            },
            "depth": self.depth,
            "executor": self.executor,
            "graphs": False,
        }
        if self.divided == "pipeline" and ranks > 1:
            found["policies"] = {"scheduling": {"kind": "groups", "groups": self.depth}}
        if self.drafter == "suffix":
            found["actors"] = ["driver", "suffix"]
        return found | {"nodes": self._nodes()}

    def _nodes(self) -> dict[str, Any]:
        """Those beside the nodes of the pipeline."""
        found = {"draft": {**DRAFTERS, **IN_PAIRS}[self.drafter]} if self.drafter != "none" else {}
        if self.pipeline == "async_grammar":  # no process that tries grammars: it takes long
            found["bitmask"] = {"compile_limit_s": None}
        if self.drafter == "forced":
            found["jump_forward"] = {"after": "bitmask"}
        if "tree" in found.get("draft", {}):
            found["keep_path"] = {"after": "sample"}
        if self.traffic == "swapped":
            found["swap"] = {"after": "schedule", "blocks": 16}
        return found

    def requests(self) -> tuple[list[Any], list[dict[str, Any]]]:
        """The prompts, and the parameters of each."""
        rnd = random.Random(self.seed)
        start = "Write a short story about "
        prompts: list[Any] = []
        params: list[dict[str, Any]] = []
        for index in range(5):
            text = start * (3 if self.traffic == "prefixes" else 1) + rnd.choice(TEXTS)
            prompts.append(text)
            drawn: dict[str, Any] = {
                "max_tokens": rnd.randrange(6, 20),
                "ignore_eos": True,
                "temperature": rnd.choice((0.0, 0.0, 0.9)),
                "top_k": rnd.choice((0, 20)),
                "seed": rnd.randrange(1 << 30),
                "repetition_penalty": rnd.choice((1.0, 1.0, 1.2)),
                "stop": rnd.choice(((), (" was a",))),
            }
            masked = self.grammar == "schema" or (self.grammar == "mixed" and index % 2)
            if masked:
                drawn |= {"structured_outputs": {"json": SCHEMA}, "max_tokens": 40}
                drawn |= {"ignore_eos": False, "stop": (), "repetition_penalty": 1.0}
            params.append(drawn)
        return prompts, params

    def run(self, llm: LLM) -> list[RequestOutput]:
        """Serve the requests. What is cancelled is left out: when is a matter of time."""
        prompts, params = self.requests()
        if self.traffic == "jittered":
            return self._one_by_one(llm, prompts, params)
        if self.traffic == "cancelled":
            return self._with_cancelled(llm, prompts, params)
        return llm.generate(prompts, params)

    def _one_by_one(
        self, llm: LLM, prompts: Sequence[Any], params: Sequence[Any]
    ) -> list[RequestOutput]:
        """Each prompt by a call of its own, in one order, at moments that differ by rank."""
        rnd = random.Random()  # not from the seed: arrivals differ on purpose
        tickets = []
        ended = threading.Semaphore(0)
        for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            ticket = llm.service.ticket(prompt, _params(each), _telling(ended), id=f"{index}")
            llm.service.begin([ticket])
            tickets.append(ticket)
            sleep(rnd.random() * 0.02)
        for _ in tickets:
            ended.acquire()
        return [ticket.output() for ticket in tickets]

    def _with_cancelled(
        self, llm: LLM, prompts: Sequence[Any], params: Sequence[Any]
    ) -> list[RequestOutput]:
        """Beside the others a long request, which is given up after its first piece of text."""
        long = {"max_tokens": 200, "ignore_eos": True}
        got = threading.Event()
        ended = threading.Semaphore(0)

        def first(increment: Any) -> None:
            got.set()
            if increment.output is not None:
                ended.release()

        doomed = llm.service.ticket("Write a story.", _params(long), first, id="doomed")
        llm.service.begin([doomed])
        tickets = [
            llm.service.ticket(prompt, _params(each), _telling(ended), id=f"{index}")
            for index, (prompt, each) in enumerate(zip(prompts, params, strict=True))
        ]
        llm.service.begin(tickets)
        got.wait()
        llm.service.cancel(doomed)
        for _ in range(len(tickets) + 1):
            ended.acquire()
        return [ticket.output() for ticket in tickets]


def _params(given: Mapping[str, Any]) -> Any:
    from stepweave import SamplingParams

    return SamplingParams.of(given)


def _telling(ended: threading.Semaphore) -> Any:
    def tell(increment: Any) -> None:
        if increment.output is not None:
            ended.release()

    return tell


def drawn(
    count: int,
    seed: int,
    divided: str = "tensor",
    drafters: Sequence[str] = tuple(DRAFTERS),
    traffic: Sequence[str] = TRAFFIC,
) -> Iterator[Case]:
    """So many cases, in which every choice comes up as often as there is room for."""
    rnd = random.Random(seed)
    columns: list[Sequence[Any]] = [drafters, GRAMMARS, traffic, DEPTHS]
    decks: list[list[Any]] = [[] for _ in columns]
    for number in range(count):
        chosen = []
        for deck, column in zip(decks, columns, strict=True):
            if not deck:
                deck += rnd.sample(column, len(column))
            chosen.append(deck.pop())
        drafter, grammar, arrives, depth = chosen
        executor = rnd.choice(("threads", "serial"))
        yield Case(drafter, grammar, arrives, depth, executor, seed + number, divided)
