"""What llguidance is called with for a grammar, and the calls.

The library is imported when it is first called, so that a missing one is an error with a cure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from .grammar import GrammarError, GrammarSpec
from .job import Job
from .refusal import Refusal
from .structural_tag import normalise

INSTALL: Final = "pip install 'llguidance>=1.7,<2'"

MAX_ITEMS_IN_ROW: Final = 16_384
"""How many ways on a parser may keep open at one byte. The library's 2,000 end a request under way
that may write any of 1,000 optional properties."""

# Without it the library allows, wherever the text is forced, only the tokens of its own choice.
_HEADER: Final = '%llguidance {"no_forcing": true}\n'


def library() -> Any:
    """The module. Raises `GrammarError` if it is not installed."""
    try:
        import llguidance
    except ImportError as error:
        raise GrammarError(f"llguidance is not installed; install it: {INSTALL}") from error
    return llguidance


def job_for(spec: GrammarSpec, any_whitespace: bool, *, lenient: bool = False) -> Job:
    """The job that compiles a spec; the arguments and errors are those of `grammar_for`."""
    return Job("lark", grammar_for(spec, any_whitespace, lenient=lenient))


def make_tokenizer(
    tokens: Sequence[bytes], special: Sequence[int], stop_tokens: Sequence[int]
) -> Any:
    """An `LLTokenizer` over exactly these ids, special ones spelling nothing."""

    class Vocabulary:
        """What the library's wrapper asks of a tokenizer."""

        def __init__(self) -> None:
            self.eos_token_id = stop_tokens[0]
            self.bos_token_id = None
            self.special_token_ids = list(special)
            self.tokens = list(tokens)

        def __call__(self, text: bytes | str) -> list[int]:
            return []  # would only matter to forced text, which is off

    llguidance = library()
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(Vocabulary()),
        n_vocab=len(tokens),
        eos_token=list(stop_tokens),
    )


def compile_grammar(tokenizer: Any, grammar: str) -> Any:
    """An `LLMatcher` at the start of the grammar; copies of it follow requests.

    Raises:
        RuntimeError: the library's words on why not.
    """
    llguidance = library()
    limits = llguidance.LLParserLimits(max_items_in_row=MAX_ITEMS_IN_ROW, verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise RuntimeError(_first_line(matcher.get_error()))
    matcher.compute_bitmask()  # a grammar without any output shows here
    if matcher.is_error():
        raise RuntimeError(f"no output can satisfy it ({_first_line(matcher.get_error())})")
    return matcher


def grammar_for(spec: GrammarSpec, any_whitespace: bool, *, lenient: bool = False) -> str:
    """The library's text of a spec.

    Args:
        spec: any kind.
        any_whitespace: let JSON contain any white space, rather than one blank where XGrammar
            writes one.
        lenient: compile schemas of which constraints are ignored.

    Raises:
        GrammarError: there is no equal grammar for this library.
    """
    match spec.kind:
        case "json":
            lark = f"start: %json {_schema(spec.source, any_whitespace, lenient)}"
        case "json_object":
            schema = _schema('{"type":"object"}', any_whitespace, lenient)
            lark = f"start: %json {schema}"
        case "regex":
            lark = f"start: {_regex(spec.source)}"
        case "grammar":
            lark = _from_ebnf(spec.source)
        case "choice":
            lark = f"start: /{'|'.join(map(_quoted, spec.choices))}/"
        case "structural_tag":
            lark = _from_structural_tag(normalise(spec.source), any_whitespace, lenient)
    return str(library().LLMatcher.grammar_from_lark(_HEADER + lark))


def _schema(source: str, any_whitespace: bool, lenient: bool) -> str:
    schema = json.loads(source)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("json: the schema `false` allows nothing")
    options: dict[str, object] = {"whitespace_flexible": any_whitespace, "lenient": lenient}
    if not any_whitespace:
        options |= {"item_separator": ", ", "key_separator": ": "}
    return json.dumps({**schema, "x-guidance": options})


def _regex(source: str) -> str:
    """The whole output must match; \\d, \\w and \\s are ASCII."""
    if re.fullmatch(r"(?s:[^\\]|\\.)*", source) is None:
        raise GrammarError("regex: it ends in a backslash")
    return f"/{library().regex_to_lark(source, 'dws')}/"


def _quoted(text: str) -> str:
    """A regular expression for exactly this text."""
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):x}}}"
        for character in text
    )


_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S
)


def _from_ebnf(source: str) -> str:
    """By the library's own converter, which takes each rule without recursion for one terminal.

    Terminals are read greedily, so an output is always one of the grammar, but not every output of
    an ambiguous grammar can be written.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    def plain(escape: re.Match[str]) -> str:
        # The converter loses leading zeros of code points; the character itself it keeps.
        digits = next((group for group in escape.groups()[:3] if group), None)
        if digits is None or int(digits, 16) > 0x10FFFF:
            return escape[0]
        character = chr(int(digits, 16))
        return f"\\{character}" if character in '"\\[]^-/' else character

    try:
        return _without_header(str(gbnf_to_lark(_ESCAPE.sub(plain, source))))
    except Exception as error:
        raise Refusal("foreign", [f"grammar: not convertible for llguidance: {error}"]) from error


def _from_structural_tag(source: str, any_whitespace: bool, lenient: bool) -> str:
    """Free text in which triggers lead to tags around schemas: what `StructTag` can say."""
    llguidance = library()
    format_ = json.loads(source)["format"]
    if format_.get("type") != "triggered_tags":
        raise _no_tag(f"format {format_.get('type')!r}")
    for option in ("at_least_one", "stop_after_first", "excludes"):
        if format_.get(option):
            raise _no_tag(f"{option!r}")
    given, leading = format_.get("tags", []), format_.get("triggers", [])
    if not _list_of(dict, given) or not _list_of(str, leading):
        raise _no_tag("'tags' that is no list of objects, or 'triggers' that is none of strings")
    tags = []
    for tag in given:
        begin, end, content = tag.get("begin"), tag.get("end"), tag.get("content", {})
        if not isinstance(begin, str) or not isinstance(end, str):
            raise _no_tag("a tag whose begin or end is no single string")
        if not isinstance(content, dict):
            raise _no_tag("content that is no object")
        if content.get("type") != "json_schema" or content.get("style", "json") != "json":
            raise _no_tag("content other than a JSON Schema in JSON")
        if "json_schema" not in content:
            raise _no_tag("content without its JSON Schema")
        if unknown := set(content) - {"type", "json_schema", "style"}:
            raise _no_tag(f"{min(unknown)!r}")
        triggers = [each for each in leading if begin.startswith(each)]
        if len(triggers) != 1:
            raise GrammarError(
                f"structural_tag: the tag {begin!r} begins with {len(triggers)} of the triggers"
            )
        schema = _schema(json.dumps(content["json_schema"]), any_whitespace, lenient)
        tags.append(llguidance.StructTag(trigger=triggers[0], begin=begin, grammar=schema, end=end))
    if not tags:
        raise GrammarError("structural_tag: there are no tags")
    lark = llguidance.StructTag.to_grammar(tags, assume_special=False)
    return _without_header(str(lark))


def _list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _without_header(lark: str) -> str:
    return lark.replace("%llguidance {}\n", "", 1)


def _no_tag(what: str) -> Refusal:
    return Refusal(
        "foreign",
        [
            f"structural_tag: llguidance has no equal for {what}; it has triggered tags around "
            "JSON Schemas only"
        ],
    )


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "no reason given"
