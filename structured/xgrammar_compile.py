"""One grammar as a job for XGrammar's compiler, to be run here or in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .grammar import GrammarSpec
from .structural_tag import normalise


@dataclass(frozen=True)
class Job:
    """What to call with which text. `call` is "json", "regex", "ebnf" or "structural_tag"."""

    call: str
    source: str
    any_whitespace: bool = False


def job_for(spec: GrammarSpec, any_whitespace: bool) -> Job:
    """The job that compiles a spec. Choices become EBNF: the library has no call for them."""
    match spec.kind:
        case "json":
            return Job("json", spec.source, any_whitespace)
        case "json_object":
            return Job("json", '{"type":"object"}', any_whitespace)
        case "regex":
            return Job("regex", spec.source)
        case "grammar":
            return Job("ebnf", spec.source)
        case "choice":
            return Job("ebnf", choice_as_ebnf(spec.choices))
        case "structural_tag":
            return Job("structural_tag", normalise(spec.source))


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
