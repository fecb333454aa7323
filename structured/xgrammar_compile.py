"""What XGrammar is called with for a grammar, and the calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from .grammar import GrammarSpec
from .job import Job
from .schema_document import every_schema
from .schema_xgrammar import LONGEST_PATTERN
from .structural_tag import formats, normalise

# What a JSON string may hold unescaped: all but controls, the quote, the backslash and surrogates.
_PLAIN: Final = f"[ !#-\\[\\]-{chr(0xD7FF)}{chr(0xE000)}-{chr(0x10FFFF)}]"


def unenforced(spec: GrammarSpec, any_whitespace: bool) -> tuple[str, ...]:
    """What XGrammar would let in, of a spec that `read` rewrote, and no mask can take out."""
    if not has_long_bounds(spec) or _without_controls(spec, any_whitespace):
        return ()
    return (
        f"{spec.kind}: control characters in strings bounded above {LONGEST_PATTERN} "
        "characters cannot be kept out",
    )


def _without_controls(spec: GrammarSpec, any_whitespace: bool) -> bool:
    """Whether masks are to take out control characters: compact JSON holds none anywhere."""
    return spec.kind == "json" and not any_whitespace and has_long_bounds(spec)


def job_for(spec: GrammarSpec, any_whitespace: bool) -> Job:
    """The job that compiles a spec. Choices become EBNF: the library has no call for them."""
    match spec.kind:
        case "json":
            source = json.dumps(as_patterns(json.loads(spec.source)))
            return Job("json", source, any_whitespace, _without_controls(spec, any_whitespace))
        case "json_object":
            return Job("json", '{"type":"object"}', any_whitespace)
        case "regex":
            return Job("regex", spec.source)
        case "grammar":
            return Job("ebnf", spec.source)
        case "choice":
            return Job("ebnf", choice_as_ebnf(spec.choices))
        case "structural_tag":
            tag = json.loads(normalise(spec.source))
            for _, format_ in formats(tag):
                if "json_schema" in format_ and format_.get("style", "json") == "json":
                    format_["json_schema"] = as_patterns(format_["json_schema"])
                    if not any_whitespace:  # the call has no compact form: at most one, then
                        format_.setdefault("max_whitespace_cnt", 1)
            return Job("structural_tag", json.dumps(tag))


def as_patterns(schema: Any) -> Any:
    """The schema, changed in place, with bounds on lengths written as patterns.

    The library lets control characters into strings with such bounds, and JSON does not. The
    pattern costs as much to compile and to fill as the bounds do. Long bounds stay as they are:
    see `has_long_bounds`.
    """
    for each in every_schema(schema):
        low, high = each.get("minLength", 0), each.get("maxLength")
        alone = not {"pattern", "format", "enum", "const", "$ref"} & set(each)
        if not alone or not {"minLength", "maxLength"} & set(each):
            continue
        if _bound(each) > LONGEST_PATTERN:
            continue
        if type(low) is int and (high is None or (type(high) is int and 0 <= low <= high)):
            each.pop("minLength", None)
            each.pop("maxLength", None)
            each["pattern"] = f"^{_PLAIN}{{{low},{'' if high is None else high}}}$"
    return schema


def has_long_bounds(spec: GrammarSpec) -> bool:
    """Whether the library is given bounds on lengths, so that control characters may get in."""
    if spec.kind == "json":
        schemas = [json.loads(spec.source)]
    elif spec.kind == "structural_tag":
        every = formats(json.loads(normalise(spec.source)))
        schemas = [format_["json_schema"] for _, format_ in every if "json_schema" in format_]
    else:
        return False
    return any(
        _bound(each) > LONGEST_PATTERN for schema in schemas for each in every_schema(schema)
    )


def _bound(schema: Any) -> int:
    """The largest bound on a string's length that a schema states itself."""
    bounds = (schema.get("minLength", 0), schema.get("maxLength", 0))
    return max((bound for bound in bounds if type(bound) is int), default=0)


def compile_job(compiler: Any, job: Job) -> Any:
    """Run a job with an `xgrammar.GrammarCompiler`; whatever it raises comes through."""
    match job.call:
        case "json":
            return compiler.compile_json_schema(job.source, any_whitespace=job.any_whitespace)
        case "regex":
            return compiler.compile_regex(job.source)
        case "structural_tag":
            return compiler.compile_structural_tag(job.source)
        case _:
            return compiler.compile_grammar(job.source)


def choice_as_ebnf(choices: Sequence[str]) -> str:
    """`root ::= "a" | "b"`, every character that is not plain written as an escape."""
    return "root ::= " + " | ".join(f'"{"".join(map(_escape, choice))}"' for choice in choices)


def _escape(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}"
