"""EBNF grammars that lead to endless texts are refused; all others are left to the libraries."""

from __future__ import annotations

import random

import pytest
import xgrammar as xgr

from stepweave.structured.ebnf import endless
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.reading import read


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ('root ::= "a" root', ("root", "root")),
        ('root ::= "x" | item\nitem ::= "(" item ")"', ("item", "item")),
        ('root ::= "stop" | "go" more\nmore ::= more', ("more", "more")),
        ('root ::= "a" (more)?\nmore ::= b "x"\nb ::= more | more more', ("more", "b", "more")),
        ('root ::= "a" | b\nb ::= "b" nowhere', None),
        ('root ::= "a"\nalone ::= alone', None),
        ('root ::= item "x" # ends\nitem ::= "(" item ")"', ("root", "item", "item")),
        ('root ::= a | b\na ::= "1" b\nb ::= "2" a', ("root", "a", "b", "a")),
        ('root ::= ("a" root)*', None),
        ('root ::= ("a" root)? "b"', None),
        ('root ::= ("a" root){0,3}', None),
        ('root ::= ("a" root){2}', ("root", "root")),
        ('root ::= ("a" root)+', ("root", "root")),
        ('root ::= "a" (root | "")', None),
        ('root ::= ("a" | [b-d]) ("#" | (root))', None),
        ('root ::= "a" ("b" | "c" (root)) root', ("root", "root")),
        ('root ::= "\\"::=" [\\]|] | root', None),
        ("root ::= root\n", ("root", "root")),
        ("", None),
        ('other ::= "a" other', None),
        ('root ::= "a" root (=lookahead)', None),
        ('root ::= nowhere "a"', None),
        ('root ::= ("a" root', None),
        ('root ::= "a" root)', None),
        ('root ::= "a" root\nroot ::= "b"', None),
        ("root ::= " + "(" * 5000 + "root" + ")" * 5000, ("root", "root")),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, None),
        ('root ::= ("a" (b))+\nb ::= "b" (("c" b) | (root))', ("root", "b", "b")),
    ],
)
def test_each_rule_of_the_path_needs_the_next(source: str, path: tuple[str, ...] | None) -> None:
    assert endless(source) == path


def test_such_a_grammar_is_refused_whatever_library_it_is_for() -> None:
    spec = GrammarSpec.from_request({"grammar": 'root ::= item "x"\nitem ::= "(" item ")"'})
    with pytest.raises(GrammarError, match=r"no text of it ends.*: root → item → item$"):
        read(spec, "xgrammar")
    spec = GrammarSpec.from_request({"grammar": 'root ::= "stop" | "go" more\nmore ::= more'})
    with pytest.raises(GrammarError, match=r"no text of its rule 'more' ends.*: more → more$"):
        read(spec, "xgrammar")
    assert read(GrammarSpec.from_request({"grammar": 'root ::= "a"'}), "llguidance").spec


def drawn(draw: random.Random) -> str:
    """A grammar of a few rules over the letter a."""
    names = ["root", "b", "c"]

    def part(depth: int) -> str:
        kind = draw.randrange(5 if depth else 3)
        if kind < 2:
            return draw.choice(names)
        if kind == 2:
            return '"a"'
        inner = f"({alternatives(depth - 1)})"
        return inner + draw.choice(["", "", "?", "*", "+", "{1,2}", "{0,1}"])

    def alternatives(depth: int) -> str:
        return " | ".join(
            " ".join(part(depth) for _ in range(draw.randrange(1, 3)))
            for _ in range(draw.randrange(1, 3))
        )

    return "\n".join(f"{name} ::= {alternatives(2)}" for name in names)


def shortest(source: str, most: int = 300) -> bool:
    """Whether the library comes to an end of a text, of letters a, by the shortest way: by trying
    each token, the end first, in a search that remembers nothing but how long a text is."""
    vocabulary = ["a", "</s>"]
    info = xgr.TokenizerInfo(vocabulary, vocab_size=2, stop_token_ids=[1])
    compiled = xgr.GrammarCompiler(info, max_threads=1).compile_grammar(source)
    matcher = xgr.GrammarMatcher(compiled)
    mask = xgr.allocate_token_bitmask(1, 2)
    for _ in range(most):
        matcher.fill_next_token_bitmask(mask)
        if int(mask[0, 0]) & 2:
            return True
        if not int(mask[0, 0]) & 1 or not matcher.accept_token(0):
            return False
    return False


def test_what_the_library_ends_is_never_refused_and_what_is_refused_never_ends() -> None:
    """Over one letter the only text of a length is the one of as many: a walk finds all ends."""
    draw = random.Random(4)
    ends = refused = 0
    for _ in range(300):
        source = drawn(draw)
        if any(f"{name} ::= {other}" in source for name in "bc" for other in ("root", name)):
            continue  # left recursion right away, which the library may refuse
        try:
            found = shortest(source, 40)
        except RuntimeError:
            continue
        path = endless(source)
        claimed = path is not None and path[0] == "root"
        assert not (claimed and found), source
        ends, refused = ends + found, refused + claimed
    assert ends > 50
    assert refused > 10
