"""Text comes in whole characters, and all of it comes."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stepweave.models.tokenizer import StreamDecoder, load_tokenizer
from stepweave.testing.models import save_tiny, tiny_tokenizer

BPE = tiny_tokenizer()
NAUGHTY = [
    "plain text",
    "naïve café — “quotes”",
    "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u200b\u202e",
    "\N{REPLACEMENT CHARACTER} real \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}",
    "漢字かな交じり 한국어 العربية עברית",
    "  leading and trailing  \n\n\t\r\n",
    "\x00\x01\x7f<eos><pad> don't can't I 'm",
    "",
]


class SlowOnly:
    """A tokenizer without the library's own stream behind it."""

    def __init__(self, tokenizer: Any) -> None:
        self.decode, self.encode = tokenizer.decode, tokenizer.encode


def text(ids: list[int]) -> str:
    out = BPE.decode(ids, skip_special_tokens=True)
    assert isinstance(out, str)
    return out


def stream(tokenizer: Any, ids: list[int], cuts: list[int], prompt: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer, prompt or None)
    pieces, start = [], 0
    for cut in [*sorted(cuts), len(ids)]:
        pieces.append(decoder.push(ids[start:cut]))
        start = max(start, cut)
    return [*pieces, decoder.finish(), decoder.finish()]


TOKENIZERS = pytest.mark.parametrize("tokenizer", [BPE, SlowOnly(BPE)], ids=["fast", "slow"])


@TOKENIZERS
@pytest.mark.parametrize("naughty", NAUGHTY)
def test_naughty_text_comes_back_whole(tokenizer: Any, naughty: str) -> None:
    ids: list[int] = BPE(naughty)["input_ids"]
    pieces = stream(tokenizer, ids, list(range(1, len(ids))), [])
    assert "".join(pieces) == text(ids)
    held = [p for p in pieces[:-2] if p.endswith("\N{REPLACEMENT CHARACTER}")]
    assert not held, "a broken character was sent"


@TOKENIZERS
@given(data=st.data())
def test_any_tokens_in_any_pieces_make_the_same_text(tokenizer: Any, data: st.DataObject) -> None:
    token = st.integers(0, len(BPE) - 1)
    ids = data.draw(st.lists(token, max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    assert "".join(stream(tokenizer, ids, cuts, [])) == text(ids)


@TOKENIZERS
def test_after_a_prompt_only_the_new_text_comes(tokenizer: Any) -> None:
    draw = random.Random(0)
    for _ in range(50):
        prompt: list[int] = BPE("the prompt: " + draw.choice(NAUGHTY))["input_ids"]
        ids: list[int] = BPE(draw.choice(NAUGHTY))["input_ids"]
        whole, before = text(prompt + ids), text(prompt)
        assert "".join(stream(tokenizer, ids, [], prompt)) == whole[len(before) :]


def test_a_character_cut_in_two_by_the_prompt_is_completed() -> None:
    ids: list[int] = BPE("é")["input_ids"]
    assert len(ids) == 2
    assert "".join(stream(BPE, ids[1:], [], ids[:1])) == "é"


def test_a_character_that_never_ends_is_sent_at_the_end() -> None:
    ids: list[int] = BPE("aé")["input_ids"]
    assert stream(BPE, ids[:-1], [1], []) == ["a", "", "\N{REPLACEMENT CHARACTER}", ""]


def test_a_first_space_that_the_tokenizer_drops_is_kept_after_a_prompt() -> None:
    words = {"▁the": 0, "▁end": 1, "<unk>": 2}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    wrap: Any = PreTrainedTokenizerFast
    tokenizer = wrap(tokenizer_object=backend)
    assert "".join(stream(tokenizer, [0, 1], [1], [])) == "the end"
    assert "".join(stream(tokenizer, [1, 0], [1], [0])) == " end the"


def test_when_the_stream_gives_up_the_text_goes_on() -> None:
    class GivesUp:
        def step(self, tokenizer: object, token: int) -> str:
            raise Exception("Invalid prefix encountered")

    ids: list[int] = BPE("hello wörld, hello")["input_ids"]
    for good in range(len(ids)):
        decoder = StreamDecoder(BPE)
        start = decoder.push(ids[:good])
        decoder._stream = GivesUp()
        rest = [decoder.push([token]) for token in ids[good:]]
        assert start + "".join(rest) + decoder.finish() == text(ids)


def test_a_saved_tokenizer_is_loaded(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path / "model")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer("hello 漢")["input_ids"]) == "hello 漢"
    assert tokenizer.eos_token_id == 0
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "user: hi\nassistant: "
