"""Chats with a service through LangChain's client; prints what it returned, as JSON.

python langchain_chat.py BASE_URL API_KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """Who a sentence is about."""

    name: str
    age: int
    job: str
    city: str


STORY = "Write a short story about a fox named Ida."
ASKED = "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw."


def main(base_url: str, api_key: str) -> dict[str, Any]:
    model = ChatOpenAI(
        base_url=base_url,
        api_key=api_key,
        model="embedded",
        temperature=0,
        max_retries=0,
        stream_usage=True,
    )
    whole = model.bind(max_tokens=16).invoke(STORY)
    pieces = list(model.bind(max_tokens=16).stream(STORY))
    called = model.bind_tools([Person], tool_choice="Person").invoke(ASKED)
    by_schema = model.with_structured_output(Person, method="json_schema").invoke(ASKED)
    by_call = model.with_structured_output(Person, method="function_calling").invoke(ASKED)
    return {
        "whole": whole.content,
        "whole_tokens": whole.usage_metadata["output_tokens"],
        "pieces": [each.content for each in pieces],
        "streamed_tokens": sum(
            (each.usage_metadata or {}).get("output_tokens", 0) for each in pieces
        ),
        "calls": [[each["name"], each["args"]] for each in called.tool_calls],
        "by_schema": by_schema.model_dump(),
        "by_call": by_call.model_dump(),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
