"""Several modules that predict further tokens draft what a plain reading of the paper says.

Texts are drawn, and so are the target's hidden states, what is accepted, and the steps: modules
must draft as if they saw the whole text anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import UnsupportedModel
from stepweave.models.loading import Loading
from stepweave.nodes.data import Kept
from stepweave.nodes.drafter import settled_spans
from stepweave.nodes.eagle import propose
from stepweave.nodes.mtp import MtpOptions, _load
from stepweave.nodes.tree import GrownTree, Growth, ListedTree, Tree
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import ScheduledRow, StepBatch
from tests.models.test_mtp import LAYOUTS, Reference, Weights, module_weights, smaller, with_more
from tests.models.test_mtp import write as write_modules
from tests.nodes import steps
from tests.nodes.steps import chunk, decoding, drafts_of, inputs_of, progress_of, sampled_of

DRAFTS, TEXT, VOCAB = 5, 26, 96
LIMITS = replace(steps.LIMITS, draft_tokens=DRAFTS)


class Plain:
    """The modules over a whole text, with no cache."""

    def __init__(self, larger: PreTrainedModel, weights: Weights, count: int) -> None:
        epsilon = float(larger.config.rms_norm_eps)
        self.modules = [Reference(larger, weights, epsilon, place) for place in range(count)]

    @torch.no_grad()
    def guesses(self, text: list[int], hidden: Tensor, path: Sequence[int]) -> Tensor:
        """Logits `[V]` after `text` and the drafts of `path`.

        The last token of `text` has no hidden state among `hidden[T, H]`.
        """
        known, states, most = [*text, *path], hidden, len(self.modules) - 1
        fed = states
        for place in range(len(path) + 1):
            if place <= most:  # what the module before made of each position
                fed, first = states, place + 1
            else:  # the last again, a position further, with what it made itself
                fed = torch.cat([fed, states[-1:]])
            seen = known[first : len(text) + place]
            logits, states = self.modules[min(place, most)](seen, fed)
        return logits[-1]

    def drafts(self, text: list[int], hidden: Tensor) -> list[int]:
        """The likeliest chain after `text`, by `guesses`."""
        path: list[int] = []
        for _ in range(DRAFTS):
            path.append(int(self.guesses(text, hidden, path).argmax()))
        return path

    def check(self, tokens: list[int], branches: Tensor, text: list[int], hidden: Tensor) -> int:
        """Whether each node of a tree, `branches[3, k + 1]`, is of the likeliest after its way, as
        many as its parent has children; how deep it is.
        """
        parents = branches[0].tolist()
        ways: dict[int, list[int]] = {0: []}
        for place, token in enumerate(tokens, start=1):
            ways[place] = [*ways[parents[place]], token]
        for parent in set(parents[1:]):
            own = {tokens[at - 1] for at in range(1, len(parents)) if parents[at] == parent}
            likely = self.guesses(text, hidden, ways[parent]).topk(len(own)).indices
            assert own == set(likely.tolist()), (parent, ways)
        return max(map(len, ways.values()))


class Row:
    """A text that is written step by step; what is drafted for it is right as often as we say."""

    def __init__(self, number: int, draw: Random, size: int) -> None:
        self.number, self.draw = number, draw
        self.text = [draw.randrange(VOCAB) for _ in range(TEXT)]
        self.hidden = torch.tensor(
            [[draw.gauss(0, 1) for _ in range(size)] for _ in range(TEXT)], dtype=torch.float64
        )
        self.computed, self.prompt = 0, 7
        self.pending: list[int] = []
        self.kept = 1

    def schedule(self) -> tuple[ScheduledRow, list[int] | None, Tensor]:
        """The row of a step, what is sampled of it, and the target's hidden states."""
        if self.computed < self.prompt:
            stop = min(self.computed + self.draw.randrange(1, 6), self.prompt)
            tokens, last = self.text[self.computed : stop], stop == self.prompt
            following = -1 if last else self.text[stop]
            row = chunk(
                self.number, tokens, self.computed, window=DRAFTS + 1, samples=last,
                following=following,
            )  # fmt: skip
            self.kept = len(tokens)
            states = self.hidden[self.computed : stop]
            return row, [self.text[stop]] if last else None, states
        right = self.draw.randrange(DRAFTS + 1)
        at = self.computed + 1
        self.pending = self.text[at : at + right]
        wrong = [(token + 1) % VOCAB for token in self.text[at + right : at + DRAFTS]]
        self.pending += wrong[: DRAFTS - right]
        self.kept = right + 1
        junk = torch.full((DRAFTS - right, self.hidden.shape[1]), 7.0, dtype=torch.float64)
        states = torch.cat([self.hidden[self.computed : at + right], junk])
        row = decoding(self.number, window=DRAFTS + 1)
        return row, self.text[at : at + right + 1], states


LISTED = Tree.of(((0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0)))
TREES = {
    "no tree": None,
    "listed": ListedTree(LISTED, LISTED.branches(torch.device("cpu"))),
    "two at each depth": ListedTree(
        Tree.of(((0,), (1,), (0, 0), (1, 0), (1, 0, 0))),
        Tree.of(((0,), (1,), (0, 0), (1, 0), (1, 0, 0))).branches(torch.device("cpu")),
    ),
    "grown": GrownTree(Growth(width=1, depth=4, children=2), DRAFTS),
    "wide": GrownTree(Growth(width=2, depth=3), DRAFTS),
}


def run(
    head: EagleHead,
    plain: Plain,
    monkeypatch: pytest.MonkeyPatch,
    *,
    padded: bool,
    tree: ListedTree | GrownTree | None = None,
) -> int:
    """Write three texts at a time; how many windows were drafted, each as `plain` says.

    What is judged are chains, whatever is offered.
    """
    monkeypatch.setattr(steps, "LIMITS", LIMITS)
    monkeypatch.setattr(steps, "VOCAB", VOCAB)
    draw = Random(5)
    cache: Any = head.new_cache(40, LIMITS.block_size)
    rows = [Row(number, draw, head.hidden_size) for number in range(3)]
    compared = 0
    for _ in range(40):
        going = [row for row in rows if row.computed + DRAFTS + 2 < TEXT]
        if not going:
            break
        going.sort(key=lambda row: row.computed < row.prompt)  # those that decode lie first
        planned = [row.schedule() for row in going]
        batch = StepBatch(9, tuple(each for each, _, _ in planned))
        progress = {
            row.number: (row.text[row.computed], row.computed)
            for row in going
            if row.computed >= row.prompt
        }
        pending = {row.number: row.pending for row in going if row.number in progress}
        inputs = inputs_of(batch, progress_of(progress), drafts_of(pending, k=DRAFTS))
        got = [sampled for _, sampled, _ in planned if sampled is not None]
        kept = None
        if not padded:
            spans = settled_spans(batch, [len(each) for each in got])
            index = [at + i for at, count in spans for i in range(count)]
            kept = Kept(torch.tensor(index), tuple(count for _, count in spans))
        proposal = propose(
            inputs=inputs,
            sampled=sampled_of(got, width=batch.width) if got else None,
            hidden=torch.cat([states for _, _, states in planned]),
            draft_kv=cache,
            kept=kept,
            allowed=None,
            head=head,
            rule=Coupled(),
            vocab_size=VOCAB,
            limits=LIMITS,
            tree=tree,
            recorder=None,
        )
        drafted = 0
        for row, (_, sampled, _) in zip(going, planned, strict=True):
            row.computed += row.kept
            if sampled is not None:
                assert proposal is not None
                at, text, seen = drafted, row.text[: row.computed + 1], row.hidden
                drafted += 1
                tokens = proposal.tokens[at].tolist()
                if proposal.branches is None:
                    assert tokens == plain.drafts(text, seen[: row.computed]), row.number
                else:
                    branches = proposal.branches[at]
                    depth = plain.check(tokens, branches, text, seen[: row.computed])
                    assert depth == int(branches[1].max())
                compared += 1
    return compared


def loaded(family: str, count: int, folder: Path) -> tuple[EagleHead, Plain, PreTrainedModel]:
    """The modules as they are loaded and as they are read, and the model that has their layers."""
    larger = with_more(family, count)
    weights = module_weights(larger, LAYOUTS[family])
    target = CausalLM.wrap(smaller(larger), invariant=False)
    head = Loading(invariant=False).mtp_head(write_modules(folder, weights, {}), target)
    assert len(head.modules) == count
    return head, Plain(larger, weights, count), larger


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("family", LAYOUTS)
def test_modules_draft_as_if_they_saw_the_whole_text_anew(
    family: str, count: int, padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, plain, _ = loaded(family, count, tmp_path / "modules")
    assert run(head, plain, monkeypatch, padded=padded) >= 12


def renamed(weights: Weights, larger: PreTrainedModel) -> Weights:
    """The names of transformers' own modules, for those of DeepSeek's files."""
    found: Weights = {}
    for name, each in larger.state_dict().items():
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= 2:
            _, _, number, part = name.split(".", 3)
            found[f"layers.{int(number) - 2}.mtp_block.{part}"] = each
    for name, each in weights.items():
        _, _, number, part = name.split(".", 3)
        part = part.replace("shared_head.norm", "post_norm")
        if part.split(".")[0] in ("enorm", "hnorm", "eh_proj", "post_norm"):
            found[f"layers.{int(number) - 2}.{part}"] = each
    return found


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_plain_reading_is_that_of_transformers_own_modules(family: str, tmp_path: Path) -> None:
    _, plain, larger = loaded(family, 3, tmp_path / "modules")
    target: Any = smaller(larger)
    target.config.num_mtp_layers = 3
    target.config.name_or_path = ""
    theirs: Any = nn.Module.to(MtpModel(target, 3), torch.float64)
    theirs.load_state_dict(renamed(module_weights(larger, "deepseek"), larger), strict=False)
    draw = Random(2)
    for length in (4, 9, 17):
        text = [draw.randrange(VOCAB) for _ in range(length)]
        with torch.no_grad():
            hidden = target.model(torch.tensor([text])).last_hidden_state[0, :-1]
            own, _, _ = theirs(
                input_ids=torch.tensor([text[1:]]),
                last_hidden_states=hidden[None],
                attention_mask=torch.ones(1, length - 1, dtype=torch.int64),
                position_ids=torch.arange(1, length)[None],
                mtp_cache=None,
            )
        assert plain.drafts(text, hidden)[:3] == own[0].tolist()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tree", [name for name in TREES if TREES[name]])
@pytest.mark.parametrize("modules", [2, 3, 4])
def test_nodes_of_trees_are_the_likeliest_after_their_way(
    tree: str, modules: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, plain, _ = loaded("deepseek_v3", modules, tmp_path / "modules")
    assert run(head, plain, monkeypatch, padded=True, tree=TREES[tree]) > 10


def test_several_modules_offer_no_trees_of_which_a_pass_has_several_depths(tmp_path: Path) -> None:
    larger = with_more("llama", 2)
    folder = write_modules(tmp_path / "modules", module_weights(larger, "deepseek"), {})
    target = CausalLM.wrap(smaller(larger), invariant=False)
    growth = {"width": 1, "depth": 3, "children": 2, "among": "all"}
    chosen = MtpOptions.model_validate({"model": str(folder), "tree": growth, "tokens": 4})
    with pytest.raises(UnsupportedModel, match=r"it has 2 modules, .* leave it out of `tree`"):
        _load(chosen, target, Loading(invariant=False))
