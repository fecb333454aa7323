"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ...configs.contents import Text
from ...requests.keys import Listed
from .base import Body
from .chat import MAX_MESSAGES, MAX_TOOLS, Message, Tool
from .sampling import ShortText

MAX_IDS = 1 << 18


class TokenizeRequest(Body):
    """A text, or a conversation as the chat template writes it."""

    model: ShortText | None = None
    prompt: Text | None = Field(default=None, description="A text.")
    messages: (
        Annotated[
            tuple[Message, ...],
            Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
            Listed,
        ]
        | None
    ) = Field(default=None, description="A conversation.")
    tools: (
        Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS, fail_fast=True), Listed] | None
    ) = Field(default=None, description="With `messages`: the functions it is told of.")
    add_special_tokens: bool | None = Field(
        default=None,
        description="With `prompt`: add what the tokenizer puts around a text. Not given: true.",
    )
    return_token_strs: bool | None = Field(
        default=None, description="Return the text of each token too, as `token_strs`."
    )
    REFUSED: ClassVar = {
        "add_generation_prompt": ("the conversation ends where the answer begins", (True,)),
        "continue_final_message": ("the conversation ends where the answer begins", (False,)),
        "chat_template": ("the model's own template is used", ()),
        "chat_template_kwargs": ("the model's own template is used as it is", ({},)),
    }

    @model_validator(mode="after")
    def _prompt_or_messages(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either prompt or messages")
        if self.messages is None and self.tools:
            raise ValueError("tools needs messages")
        if self.messages is not None and self.add_special_tokens is not None:
            raise ValueError("add_special_tokens is for a prompt: a template writes its own")
        return self


class DetokenizeRequest(Body):
    """Token ids."""

    model: ShortText | None = None
    tokens: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...],
        Field(max_length=MAX_IDS, fail_fast=True),
        Listed,
    ] = Field(description="Ids of tokens.")
