"""One grammar as a job for a library's compiler, to be run here or in a process of its own."""

from __future__ import annotations

from dataclasses import replace

from . import llguidance_compile, xgrammar_compile
from .grammar import GrammarSpec
from .job import Job
from .reading import Library, read
from .refusal import Refusal


def prepare(spec: GrammarSpec, library: Library, *, any_whitespace: bool, strict: bool) -> Job:
    """The job that compiles a spec, in forms that the library serves exactly.

    Args:
        spec: any kind.
        library: the one that is to run the job.
        any_whitespace: let JSON contain any white space.
        strict: refuse what would not be enforced, rather than put it into the job's warnings.

    Raises:
        Refusal: the library cannot be given this grammar.
        GrammarError: no library can, or this one is not installed.
    """
    reading = read(spec, library)
    unenforced = reading.unenforced
    if library == "xgrammar":
        unenforced += xgrammar_compile.unenforced(reading.spec, any_whitespace)
    if strict and unenforced:
        raise Refusal("unenforced", unenforced)
    if library == "xgrammar":
        job = xgrammar_compile.job_for(reading.spec, any_whitespace)
    else:
        job = llguidance_compile.job_for(reading.spec, any_whitespace, lenient=not strict)
    return replace(job, warnings=unenforced).checked(spec.kind)
