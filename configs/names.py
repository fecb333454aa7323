"""What may be a name in a file, in words. Pipelines and abstract graphs have one rule for nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from ..nodes.node_config import Name
from ..requests.complaints import shown

LONGEST = 128
_STAND_FOR = {
    "@": "`@` stands before a step or a rank, as in `logits@-1`",
    "#": "`#` stands before a firing, as in `drafts#0`",
    ".": "a dot stands between a node and its op or value, as in `forward.host`",
}


def not_a_name(text: str, apart: str = "@") -> str | None:
    """Why a text can be no name; None: it can. `apart`: letters that mean something beside one."""
    if not text:
        return "a name must not be empty"
    if len(text) > LONGEST:
        return f"{shown(text)} is not a name: it is longer than {LONGEST} characters"
    for letter in text:
        if letter.isspace():
            return f"{shown(text)} is not a name: leave out blanks, or write `_`"
        if letter in apart:
            return f"{shown(text)} is not a name: {_STAND_FOR[letter]}"
        if letter < " " or "\x7f" <= letter <= "\x9f":
            return f"{shown(text)} is not a name: it has a control character"
    return None


def not_a_node(text: str) -> str | None:
    """Why no node can be called so; None: one can."""
    return not_a_name(text, "@#.")


def _checked(name: str) -> str:
    if (wrong := not_a_node(name)) is not None:
        raise ValueError(wrong)
    return name


NodeName = Annotated[Name, AfterValidator(_checked)]
