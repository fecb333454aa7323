"""What both generating endpoints take: how tokens are drawn, and how the answer is sent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from ...requests.keys import (
    NOT_SUPPORTED,
    StructuredOutputs,
    WholeCharacters,
    with_keys_of,
)
from ...requests.params import RequestError, SamplingParams
from ..errors import ApiError, param_of
from .base import Body, Refused

_UNCONSTRAINED = "use structured_outputs: "
MEDIA = "messages are of text, and of images where the model reads them"
_NO_EFFECT = "the service keeps nothing of a request; leave it out"

REFUSED: Refused = {
    "guided_json": (_UNCONSTRAINED + '{"json": schema}', ()),
    "guided_regex": (_UNCONSTRAINED + '{"regex": pattern}', ()),
    "guided_choice": (_UNCONSTRAINED + '{"choice": [text, …]}', ()),
    "guided_grammar": (_UNCONSTRAINED + '{"grammar": text}', ()),
    "guided_json_object": (_UNCONSTRAINED + '{"json_object": true}', ()),
    "guided_decoding_backend": ("the pipeline's nodes.bitmask.backend chooses it", ()),
    "guided_whitespace_pattern": ("the pipeline's nodes.bitmask.any_whitespace allows it", ()),
    "structural_tag": (_UNCONSTRAINED + '{"structural_tag": {…}}', ()),
    "best_of": ("use n, which returns every completion", (1,)),
    "use_beam_search": (NOT_SUPPORTED["use_beam_search"], (False,)),
    "num_beams": (NOT_SUPPORTED["num_beams"], (1,)),
    "num_beam_groups": (NOT_SUPPORTED["num_beam_groups"], (1,)),
    "beam_width": (NOT_SUPPORTED["beam_width"], (1,)),
    "diversity_penalty": (NOT_SUPPORTED["diversity_penalty"], (0.0, 0)),
    "length_penalty": (NOT_SUPPORTED["length_penalty"], (1.0, 1)),
    "early_stopping": (NOT_SUPPORTED["early_stopping"], (False,)),
    "prompt_embeds": ("a prompt is text or token ids", ()),
    "prompt_logprobs": ("the answer has no place for them; call `LLM` from Python", ()),
    "settled_token_ids": ("call `LLM` or `AsyncLLM` from Python to go on from them", ()),
    "adapter": ("give its name as `model`", ()),
    "store": (_NO_EFFECT, (False,)),
    "metadata": (_NO_EFFECT, ({},)),
    "service_tier": ("there is one tier; use priority", ("auto", "default")),
    "include_stop_str_in_output": ("the output ends before the stop string", (False,)),
    "skip_special_tokens": ("the text never has them; see return_token_ids", (True,)),
    "spaces_between_special_tokens": ("the text never has special tokens", (True,)),
    "truncate_prompt_tokens": ("shorten the prompt before it is sent", ()),
    "logits_processors": (
        "a processor is a node of the pipeline, which requests reach by node_settings; for a few "
        "tokens use logit_bias or bad_words",
        ([],),
    ),
    "vllm_xargs": ("use node_settings", ({},)),
    "mm_processor_kwargs": (MEDIA, ()),
    "cache_salt": ("each API key has a part of the prefix cache of its own", ()),
}

ShortText = Annotated[str, Field(max_length=256), WholeCharacters]


class StreamOptions(Body):
    """What a stream tells beside the text. Only with `stream: true`."""

    include_usage: bool = Field(
        default=False, description="Send one more chunk at the end, with no choices and `usage`."
    )
    continuous_usage_stats: bool = Field(
        default=False, description="Send `usage` so far with every chunk."
    )
    REFUSED: ClassVar = {"include_obfuscation": ("chunks are sent as they are", (False,))}


DEFAULTS = {
    "max_tokens": "Tokens generated at most. Not given: 16 for a prompt, and for a conversation "
    "`max_new_tokens` of the model's generation_config.json, or all that there is room for.",
    "temperature": "Divides the logits before a token is drawn; 0 is greedy. Not given: as the "
    "model's generation_config.json says, or 1.",
    "seed": "Seed of the random draws; completion number i uses seed + i. Not given: another for "
    "each request.",
}


class Drawn(Body):
    """A request for text. What is not given is as the model's authors advise.

    And where they do not, as the API's users know it: a temperature of 1, and a seed that differs
    from request to request.
    """

    model: ShortText | None = Field(
        default=None, description="A name that /v1/models lists. Not given: the model served."
    )
    stream: bool | None = Field(
        default=None, description="Send the answer in pieces, as server-sent events."
    )
    user: ShortText | None = Field(
        default=None, description="Who asks, by a name of the caller's; the log has it."
    )

    def says(self, name: str) -> bool:
        """Whether the body has this parameter, and not as null."""
        return getattr(self, name) is not None

    def parameters(self) -> dict[str, Any]:
        """The keys of `SamplingParams` that the body has."""
        return {
            each: value for each in PARAMETERS if (value := getattr(self, each, None)) is not None
        }

    def sampling(self, defaults: Mapping[str, Any], **own: Any) -> SamplingParams:
        """The parameters of its requests; `own` goes before what the body says, and that before
        `defaults`.

        Raises `ApiError` for parameters that contradict each other.
        """
        said = self.parameters()
        drawn = {"temperature": 1.0, "seed": secrets.randbits(62)}
        structured = said.get("structured_outputs")
        if isinstance(structured, StructuredOutputs):
            asked = structured.model_dump(by_alias=True, exclude_none=True)
            said["structured_outputs"] = asked
        try:
            return SamplingParams.of({**drawn, **defaults, **said, **own})
        except RequestError as error:
            param = param_of(error.message, type(self).model_fields)
            raise ApiError(400, error.message, param=param) from error


@with_keys_of(
    SamplingParams, without={"prompt_logprobs", "settled_token_ids", "adapter"}, says=DEFAULTS
)
class _Sampling(Drawn):
    """The keys of `SamplingParams`, each with its rule."""


class Generating(_Sampling):
    """A request for completions."""

    stream_options: StreamOptions | None = Field(
        default=None, description="What the stream tells beside the text."
    )
    return_token_ids: bool | None = Field(
        default=None, description="Return the ids of the tokens beside the text."
    )
    REFUSED: ClassVar = REFUSED

    @model_validator(mode="after")
    def _options_belong_to_streams(self) -> Generating:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams: set stream to true, or leave it out")
        return self

    @property
    def streams(self) -> StreamOptions:
        return self.stream_options or StreamOptions()


PARAMETERS = tuple(each.name for each in fields(SamplingParams) if each.metadata)
