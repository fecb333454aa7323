"""What travels between a front and its replicas: plain data, as JSON has it.

To a replica goes a `Work`. From it come messages: first `taken` or `refused`, then for each step
the tokens that were settled, and last the `output`; a `beat` in between where nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..requests.increment import Increment
from ..requests.moments import RequestTimings
from ..requests.params import RequestError, SamplingParams
from ..requests.plain_params import params_of, read_params
from ..requests.request import RequestOutput, TokenLogprob
from ..serving.engine import EngineError
from ..structured.grammar import GrammarError
from ..structured.service import QueueFull

Message = Mapping[str, Any]

TAKEN: Message = {"taken": True}
"""The replica has taken the work in."""

BEAT: Message = {"beat": True}
"""The replica lives, and has nothing new to say of the work."""

REFUSALS = (RequestError, GrammarError, EngineError)
"""What a replica raises of a work that it does not take in."""


@dataclass(frozen=True, slots=True)
class Work:
    """One completion of one prompt. `index`: which of the n completions of its prompt it is."""

    id: str
    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams  # of this completion: n is 1, and the seed its own
    cache_salt: bytes = b""

    def after(self, settled: Sequence[int]) -> Work:
        """The same, to go on after these tokens of its output."""
        brought = (*self.params.settled_token_ids, *settled)
        return replace(self, params=replace(self.params, settled_token_ids=brought))

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {
            "id": self.id,
            "index": self.index,
            "prompt_ids": list(self.prompt_ids),
            "params": params_of(self.params),
            "cache_salt": self.cache_salt.hex(),
        }

    @classmethod
    def of(cls, told: Message) -> Work:
        """From what travelled. Raises `RequestError` or `GrammarError` for wrong parameters."""
        return cls(
            told["id"],
            told["index"],
            tuple(told["prompt_ids"]),
            read_params(told["params"]),
            bytes.fromhex(told["cache_salt"]),
        )


def refused(error: Exception) -> Message:
    """That a replica does not take a work in, and why."""
    kind = next(each.__name__ for each in REFUSALS if isinstance(error, each))
    return {"refused": [kind, f"{error}", getattr(error, "code", None)]}


def refusal(message: Message) -> Exception:
    """The error of a message that says `refused`: of the type that the engine raised."""
    kind, said, code = message["refused"]
    if kind == GrammarError.__name__:
        return (QueueFull if code == QueueFull.code else GrammarError)(said)
    return {each.__name__: each for each in (RequestError, EngineError)}[kind](said, code=code)


def lost_by(message: Message) -> str | None:
    """Why whoever says this serves nothing more, though it lives; None where it does serve."""
    if "refused" in message:
        kind, said, _ = message["refused"]
        return str(said) if kind == EngineError.__name__ else None
    if message.get("blame") == "engine":
        return str(message["output"]["error"])
    return None


def settled(increment: Increment) -> Message:
    """What a step settled."""
    logprobs = increment.logprobs
    return {
        "text": increment.text,
        "token_ids": list(increment.token_ids),
        "logprobs": None if logprobs is None else [_logprob(each) for each in logprobs],
    }


def logprobs_of(message: Message) -> tuple[TokenLogprob, ...] | None:
    """Those of the tokens that a step settled; None if they were not asked for."""
    found = message["logprobs"]
    return None if found is None else tuple(_logprob_of(each) for each in found)


def ended(output: RequestOutput, blame: str | None) -> Message:
    """What a completion came to, and what made it end with an error, if that is known."""
    return {"output": asdict(output), "blame": blame}


def output_of(message: Message) -> RequestOutput:
    """The output of a message that has one."""
    said = dict(message["output"])
    for name in ("logprobs", "prompt_logprobs"):
        if said[name] is not None:
            said[name] = tuple(_logprob_of([*each.values()]) for each in said[name])
    for name in ("token_ids", "warnings", "notes"):
        said[name] = tuple(said[name])
    if said["timings"] is not None:
        said["timings"] = RequestTimings(**said["timings"])
    return RequestOutput(**{**said, "choices": ()})


def _logprob(found: TokenLogprob) -> list[Any]:
    return [found.token, found.logprob, found.rank, found.top]


def _logprob_of(told: Sequence[Any]) -> TokenLogprob:
    token, logprob, rank, top = told
    return TokenLogprob(token, logprob, rank, tuple((each, value) for each, value in top))
