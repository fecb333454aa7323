"""Every public function says the shapes of its tensors and the errors that it raises, truly."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stepweave.models import paged_cache
from stepweave.models.kernels import reference
from stepweave.models.stage import Stage
from stepweave.nodes.send import send
from stepweave.nodes.tree import Growth
from stepweave.nodes.values import TOKENIZER
from stepweave.policies.acceptance import Block, Rejection, Synthetic, Typical
from stepweave.policies.chosen import Policies
from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_request, tiny_requests
from stepweave.testing.models import tiny_tokenizer
from tests.docstrings import (
    Function,
    agrees,
    functions,
    package_files,
    package_functions,
    result_shapes,
    shapeless,
    shapes_of,
    tensor_fields,
    untold,
)
from tests.installed import ROOT
from tests.serving.in_stages import Wired, Wires

RAISES_ALL_THE_SAME = {
    ("XGrammarMatcher.restore", "RuntimeError"),  # kept as the matcher's failure, by its boundary
}


def test_every_function_says_the_shapes_of_its_tensors() -> None:
    found = package_functions()
    assert sum(bool(function.tensors) for function in found) > 100
    missing = [(each.where, each.name, shapeless(each)) for each in found if shapeless(each)]
    assert missing == []


def test_every_field_says_the_shape_of_its_tensor() -> None:
    missing = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in package_files()
        for name, said in tensor_fields(path.read_text(encoding="utf-8"))
        if not said
    ]
    assert missing == []


def test_every_function_says_which_errors_it_raises() -> None:
    found = package_functions()
    assert sum(bool(function.raises) for function in found) > 100
    missing = {(each.name, error): each.where for each in found for error in untold(each)}
    assert missing.keys() == RAISES_ALL_THE_SAME, missing


SAMPLE = '''
def silent(logits: Tensor, names: list[str]) -> Tensor:
    """The best of `names[k]`, as some [n]."""
    raise LookupError("no")

def said(logits: "Tensor | None", *more: Tensor) -> tuple[Tensor, Tensor]:
    """Two of shape `[S]`, of `logits[S, V]` and `more[S]`. Raises `LookupError`."""
    if logits is None:
        raise LookupError("no")
    try:
        raise ValueError("caught")
    except ValueError:
        pass

class Kept:
    """See `x[S]`."""

    rows: Tensor
    columns: Tensor  # [S]

    def meets(self, x: Tensor) -> None:
        def inner() -> None:
            raise OSError("of another function")

    def hides(self, change: Callable[[Tensor], Tensor]) -> None: ...
'''


def test_what_is_not_said_is_seen() -> None:
    silent, said, meets, hides = functions(SAMPLE, "sample.py")
    assert (shapeless(silent), untold(silent)) == (["logits", "return"], ["LookupError"])
    for each in (said, meets, hides):
        assert (shapeless(each), untold(each)) == ([], [])
    assert dict(tensor_fields(SAMPLE)) == {"Kept.rows": False, "Kept.columns": True}


def test_a_shape_that_is_not_true_is_seen() -> None:
    known: dict[str, int] = {}
    assert agrees("S, W, V", (2, 4, 70), known)
    assert known == {"S": 2, "W": 4, "V": 70}
    assert agrees("S, W − 1, V / 32", (2, 3, 3), known)
    assert agrees("S · W", (8,), known)
    assert agrees("..., V", (9, 9, 70), known)
    assert not agrees("S, V", (2, 71), known)
    assert not agrees("S, W − 1", (2, 4), known)
    assert not agrees("S", (2, 1), known)


# --- what docstrings say, compared with what the functions get and return


@dataclass
class Observed:
    """Compares the shapes of the calls in its block with those that docstrings say."""

    seen: set[str] = field(default_factory=set)  # functions, as `folder/file.py name`
    wrong: set[str] = field(default_factory=set)
    _known: dict[CodeType, Function | None] = field(default_factory=dict)
    _open: dict[FrameType, dict[str, int]] = field(default_factory=dict)
    _by_place: Mapping[tuple[str, str], Function] = field(
        default_factory=lambda: {
            (each.where.partition(":")[0], each.name): each
            for each in package_functions()
            if each.tensors or result_shapes(each.own, each.tensors)
        }
    )

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)
            self._open.clear()

    def _function(self, code: CodeType) -> Function | None:
        if code not in self._known:
            path = Path(code.co_filename)
            inside = ROOT in path.parents
            place = path.relative_to(ROOT).as_posix() if inside else ""
            self._known[code] = self._by_place.get((place, code.co_qualname))
        return self._known[code]

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Each call comes here; where a function returns is told of those alone that are known."""
        function = self._function(frame.f_code)
        if function is None:
            return None
        given = frame.f_locals
        known = {name: each for name, each in given.items() if type(each) is int}
        self._open[frame] = known
        for name in function.tensors:
            for shape in shapes_of(name, function.said)[:1]:
                self._compare(function, name, shape, given[name], known)
        frame.f_trace_lines = False
        return self._left

    def _left(self, frame: FrameType, event: str, result: Any) -> None:
        function = self._function(frame.f_code)
        if event == "return" and function is not None and frame in self._open:
            known = self._open.pop(frame)
            shapes = result_shapes(function.own, function.tensors)
            many = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(each, Tensor | None) for each in many):
                return
            pairs = zip(many, shapes, strict=True) if len(shapes) == len(many) else ()
            for tensor, shape in pairs or ((each, shapes[0]) for each in many if shapes):
                self._compare(function, "return", shape, tensor, known)

    def _compare(
        self, function: Function, name: str, shape: str, given: object, known: dict[str, int]
    ) -> None:
        for tensor in given if isinstance(given, tuple | list) else (given,):
            if isinstance(tensor, Tensor):
                self.seen.add(f"{function.where.partition(':')[0]} {function.name}")
                if not agrees(shape, tuple(tensor.shape), known):
                    self.wrong.add(
                        f"{function.where} {function.name}: {name}[{shape}] is "
                        f"{tuple(tensor.shape)}, where {known}"
                    )


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ASKED: Sequence[SamplingParams] = (
    SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=2),
    SamplingParams(
        max_tokens=4, temperature=0.8, seed=3, top_k=30, top_p=0.9, min_p=0.01, xtc_probability=1.0
    ),
    SamplingParams(
        max_tokens=4,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        min_tokens=3,
        dry_multiplier=0.5,
        no_repeat_ngram_size=3,
    ),
    SamplingParams(max_tokens=4, logit_bias=((40, 3.0), (41, -2.0)), frequency_penalty=0.2),
)
CONFIGS = (
    TinyConfig(draft_tokens=3, method="eagle3", structured=True, token_budget=24),
    TinyConfig(draft_tokens=2, method="draft_model", padded=False, invariant=True),
    TinyConfig(
        draft_tokens=3,
        method="ngram",
        structured=True,
        policies=Policies(acceptance=Synthetic(rates=(0.5,))),
    ),
    TinyConfig(
        draft_tokens=2,
        method="draft_model",
        structured=True,
        policies=Policies(acceptance=Rejection()),
    ),
    TinyConfig(draft_tokens=2, method="draft_model", policies=Policies(acceptance=Block())),
    TinyConfig(draft_tokens=2, method="eagle", policies=Policies(acceptance=Typical())),
    TinyConfig(draft_tokens=2, method="medusa"),
    TinyConfig(draft_tokens=3, method="mtp", modules=2),
    TinyConfig(draft_tokens=2, method="suffix", structured=True),
    TinyConfig(draft_tokens=3, method="eagle3", structured=True, tree=((0,), (0, 0), (1,))),
    TinyConfig(
        draft_tokens=3,
        method="medusa",
        tree=((0,), (0, 0), (1,)),
        policies=Policies(acceptance=Rejection()),
    ),
    TinyConfig(
        draft_tokens=4,
        method="mtp",
        tree=Growth(width=2, depth=2),
        policies=Policies(acceptance=Typical()),
    ),
)


MASKED = {
    "nodes.d2h_tokens.after": "sample",
    "nodes.draft_mask.after": "d2h_tokens",
    "nodes.draft.after": "draft_mask",
}
BY_GRAMMAR = {
    "suffix": {"nodes.jump_forward.after": "bitmask"},
    "ngram": MASKED,
    "draft_model": MASKED,
}
"""What follows grammars beside the masks of the step, by drafter."""


def test_the_shapes_that_docstrings_say_are_those_of_a_run() -> None:
    observed = Observed()
    for config in CONFIGS:
        asked = list(ASKED)
        if config.structured:
            asked[1] = replace(asked[1], structured_outputs={"json": SCHEMA})
        more = BY_GRAMMAR.get(config.method) if config.structured else None
        tokenizer = {TOKENIZER: tiny_tokenizer()}
        engine = tiny_engine(config, settings=more, resources=tokenizer)
        requests = tiny_requests(asked, longest=20)
        requests.append(tiny_request(9, [5, 6, 7], asked[0], bad_words=[[8, 9], [10]]))
        with observed.watching():
            serve(engine, requests)
        assert [request.error for request in requests] == [None] * 5
    query, keys = torch.randn(6, 4, 8), torch.randn(40, 2, 8)
    tables, at = torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1, 2, 4, 5, 6])
    how = reference.How(0.3, None, None, None)
    with observed.watching():
        staged: Any = SimpleNamespace(tokens=3)
        target: Any = SimpleNamespace(departs=16)
        context: Any = SimpleNamespace(step=0)
        send(torch.randn(3, 16), staged, Wired(Stage(0, 2), Wires(2)), target, context)
        paged_cache.write(keys, keys[..., :6], at, torch.randn(6, 2, 8), torch.randn(6, 2, 6))
        reference.attend(query, keys, keys, tables, at, query_len=3, block_size=4, how=how)
    assert not observed.wrong, "\n".join(sorted(observed.wrong))
    assert len(observed.seen) > 60, sorted(observed.seen)
    unseen = {
        f"{each.where.partition(':')[0]} {each.name}"
        for each in package_functions()
        if each.tensors and each.where.startswith(("nodes/", "sampling/"))
        if "kernels/" not in each.where  # of a GPU
        if "links.py" not in each.where  # a protocol
    } - observed.seen
    assert unseen == set()
