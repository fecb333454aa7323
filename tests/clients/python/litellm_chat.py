"""Chats with a service through litellm; prints what it returned, as JSON.

LITELLM_LOCAL_MODEL_COST_MAP=True python litellm_chat.py BASE_URL API_KEY
"""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

STORY = "Write a short story about a fox named Ida."


def main(base_url: str, api_key: str) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": "openai/embedded",
        "api_base": base_url,
        "api_key": api_key,
        "messages": [{"role": "user", "content": STORY}],
        "temperature": 0,
        "max_tokens": 16,
        "num_retries": 0,
    }
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    try:
        litellm.completion(**{**asked, "n": 1000})
        wrong = ""
    except litellm.BadRequestError as error:
        wrong = str(error)
    return {
        "whole": whole.choices[0].message.content,
        "whole_tokens": whole.usage.completion_tokens,
        "pieces": [each.choices[0].delta.content or "" for each in chunks if each.choices],
        "streamed_tokens": chunks[-1].usage.completion_tokens,
        "wrong": wrong,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
