"""policies.md: the decisions, what each asks of a policy, and the policies that ship."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

from sections.keys import kind_of
from sections.markdown import table

from stepweave.policies.registry import DECISIONS, known, policy_class

INTRODUCTION = """\
# Policies

The decisions that the engine leaves to a policy, and the policies that ship. This page is written
from the code by `docs/make_reference.py`. A pipeline file names one policy for each decision:

```yaml
policies:
  scheduling: shared
  acceptance: {kind: synthetic, rates: [0.8, 0.6]}
```

A name alone stands for the policy with its defaults. Policies of installed packages are named in
the same way; `stepweave list policies` shows all. How to make one:
[Write a policy](../how-to/write-a-policy.md).
"""


def page() -> str:
    """The whole page."""
    parts = [part for decision in DECISIONS for part in _decision(decision)]
    return "\n".join([INTRODUCTION, *(f"{part}\n" for part in parts)])


def _decision(decision: str) -> Iterator[str]:
    protocol = DECISIONS[decision]
    about = (sys.modules[protocol.__module__].__doc__ or "").split("\n")[0]
    yield f"## {decision}"
    yield _sentence(about.removeprefix(f"{decision}: "))
    rows = []
    for name in known(decision, installed=False):
        made = policy_class(decision, name)
        rows.append((f"`{name}`", inspect.getdoc(made) or "", _options(made)))
    yield table(("policy", "what it does", "options"), rows)
    yield f"What `{protocol.__name__}` asks of every policy for it:"
    asked = [
        (f"`{name}`", (inspect.getdoc(member) or "").split("\n\nArgs:")[0])
        for name, member in vars(protocol).items()
        if not name.startswith("_") and inspect.getdoc(member)
    ]
    yield table(("it has", "meaning"), asked)
    yield from (" ".join(part.split()) for part in _rules(protocol))


def _rules(protocol: type) -> list[str]:
    """What its docstring says after the first sentence."""
    return (inspect.getdoc(protocol) or "").split("\n\n")[1:]


def _options(made: Any) -> str:
    schema = made.model_json_schema()
    required = schema.get("required", ())
    options = []
    for name, said in schema.get("properties", {}).items():
        default = "" if name in required else f", default `{json.dumps(said['default'])}`"
        options.append(f"`{name}` ({kind_of(said)}{default}): {said['description']}")
    return " ".join(options) or "none"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
