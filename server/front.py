"""What the routes need of whatever generates: one engine in this process, or many elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..requests.limits import Limits
from ..serving.ticket import Blame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..configs.schema import PipelineConfig
    from ..requests.params import SamplingParams
    from ..serving.async_llm import Listener
    from ..serving.images import Images
    from ..serving.prompts import Prompt


class Stream(Protocol):
    """What comes of one prompt that was taken in."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The tokens of the prompt."""
        ...

    @property
    def blame(self) -> Blame | None:
        """What made a completion end with an error, if it was neither the request nor a step."""
        ...

    def listen(self, listener: Listener) -> None:
        """Have what is there, and what comes, handed to this on the event loop."""
        ...

    def cancel(self) -> None:
        """End what has not ended; its outputs come as always."""
        ...


class Front(Protocol):
    """Takes prompts in, and tells of itself. All of it is for the event loop."""

    @property
    def config(self) -> PipelineConfig: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def limits(self) -> Limits:
        """Those of one engine."""
        ...

    @property
    def most_characters(self) -> int:
        """Characters of a text, beyond which it cannot fit into the context."""
        ...

    @property
    def images(self) -> Images | None:
        """What puts images into prompts; None: none are served."""
        ...

    @property
    def digest(self) -> str:
        """The plan that runs, in a word."""
        ...

    @property
    def alive(self) -> bool:
        """Whether requests can be served."""
        ...

    @property
    def running(self) -> int:
        """Requests that have a row."""
        ...

    @property
    def queued(self) -> int:
        """Requests that wait for one."""
        ...

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
        cache_salt: bytes = b"",
    ) -> Stream:
        """Take one prompt in. Raises as `AsyncLLM.submit`."""
        ...

    def start(self) -> None:
        """Begin, so that the first request need not."""
        ...

    async def drain(self, seconds: float | None = None) -> bool:
        """Take nothing in any more, and wait until all has ended; whether it did in time."""
        ...

    def cancel_all(self) -> None:
        """End everything that has not ended."""
        ...

    async def close(self) -> None:
        """End what runs; nothing is taken in any more."""
        ...
