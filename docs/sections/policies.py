"""policies.md: the decisions, what each asks of a policy, and the policies that ship."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from sections.data import classes
from sections.keys import default_of, kind_of, meaning_of, schema
from sections.markdown import table

from stepweave.configs.schema import policy_model
from stepweave.policies.registry import DECISIONS, known, policy_class

INTRODUCTION = """\
# Policies

The decisions that the engine leaves to a policy, and the policies that ship. This page is written
from the code by `docs/make_reference.py`. A pipeline file names one policy for each decision:

```yaml
version: 2
extends: async_speculation
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
        rows.append((f"`{name}`", inspect.getdoc(made) or ""))
    yield table(("policy", "what it does"), rows)
    if options := list(_options(decision)):
        yield table(("policy", "option", "what", "default", "meaning"), options)
    yield f"What `{protocol.__name__}` asks of every policy for it:"
    asked = [
        (f"`{name}{_signature(member)}`", (inspect.getdoc(member) or "").split("\n\nArgs:")[0])
        for name, member in vars(protocol).items()
        if not name.startswith("_") and inspect.getdoc(member)
    ]
    yield table(("it has", "meaning"), asked)
    yield from (" ".join(part.split()) for part in _rules(protocol))
    module = sys.modules[protocol.__module__]
    shown = [each for each in vars(module).values() if hasattr(each, "_fields")]
    modules = sorted({each.__module__ for each in shown} - {module.__name__})
    for of in (module.__name__, *modules):
        for name, about, fields in classes(sys.modules[of], "NamedTuple"):
            yield f"`{name}`: {about[0].lower()}{about[1:]}" if about else f"`{name}`"
            yield table(("field", "type", "meaning"), fields)


def _signature(member: object) -> str:
    """Of a method what it is given and returns, of a property its type."""
    if isinstance(member, property):
        return f": {inspect.signature(member.fget).return_annotation}" if member.fget else ""
    if not callable(member):
        return ""
    signature = inspect.signature(member)
    given = [each for name, each in signature.parameters.items() if name != "self"]
    return f"{signature.replace(parameters=given)}".replace("'", "")


def _rules(protocol: type) -> list[str]:
    """What its docstring says after the first sentence."""
    return (inspect.getdoc(protocol) or "").split("\n\n")[1:]


def _options(decision: str) -> Iterator[tuple[str, ...]]:
    for name in known(decision, installed=False):
        definition = schema()[policy_model(decision, name).__name__]
        for key, said in definition["properties"].items():
            if key != "kind":
                default = default_of(said, key in definition.get("required", ()))
                yield f"`{name}`", f"`{key}`", kind_of(said), default, meaning_of(said)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
