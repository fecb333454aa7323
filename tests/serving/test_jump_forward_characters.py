"""What a grammar forces may begin or end inside of a character; the request goes on."""

from __future__ import annotations

import pytest

from stepweave.nodes.values import TOKENIZER
from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import VOCAB, TinyConfig, serve, tiny_engine, tiny_requests
from stepweave.testing.models import tiny_tokenizer

PLAIN = TinyConfig(structured=True)
JUMPING = TinyConfig(structured=True, draft_tokens=3)

TEXTS = ("早上好", "晚上好", "答：是", "答：晚")


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "早上好" | "晚上好"',
        'root ::= "答：" ("是" | "晚")',
    ],
)
def test_texts_that_part_inside_of_a_character_are_written(grammar: str) -> None:
    tokenizer = tiny_tokenizer(VOCAB)
    params = SamplingParams(max_tokens=24, structured_outputs={"grammar": grammar})
    outputs = []
    for config, settings in ((PLAIN, None), (JUMPING, {"nodes.jump_forward.after": "bitmask"})):
        engine = tiny_engine(config, settings=settings, resources={TOKENIZER: tokenizer})
        (request,) = requests = tiny_requests([params])
        outputs += serve(engine, requests)
        assert request.error is None
    assert request.drafted > 0, "the last of them jumps"
    assert outputs[0] == outputs[1]
    text = tokenizer.decode(outputs[0], skip_special_tokens=True)
    assert text in TEXTS
