"""One engine in this process, as the routes know what generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..serving.async_llm import AsyncLLM


class OneEngine:
    """The front of an engine in this process."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm = llm
        self.config = llm.config
        self.tokenizer = llm.tokenizer
        self.digest = llm.plan.digest
        self.limits = llm.engine.limits
        self.most_characters = llm.service.intake.most_characters
        self.images = llm.service.intake.prompts.images
        self.submit = llm.submit
        self.start = llm.start
        self.drain = llm.drain
        self.cancel_all = llm.service.cancel_all
        self.close = llm.close

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self.llm.service.alive

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return self.llm.service.running

    @property
    def queued(self) -> int:
        """Requests that wait for a row, or for their grammar."""
        return self.llm.service.queued
