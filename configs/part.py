"""What every part of a config file is made with."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def model_name(*words: str) -> str:
    """`draft_model`, `node` as DraftModelNode."""
    return "".join(map(str.title, re.findall("[A-Za-z0-9]+", " ".join(words))))
