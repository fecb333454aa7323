"""Conversations with images, in Python and over HTTP."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stepweave import LLM
from stepweave.testing.vision import save_tiny_vision
from tests.server.in_thread import running

WANTED = {"max_tokens": 6, "ignore_eos": True, "temperature": 0}


def text_and(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is "}, *parts]}]


def pointing(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vision(tmp_path_factory.mktemp("model"), "qwen3_vl")


def test_images_are_served_and_broken_ones_refused_alone(model: Path) -> None:
    orange, stream = Image.new("RGB", (40, 24), "orange"), BytesIO()
    orange.save(stream, "PNG")
    orange.save(model / "orange.png")
    found = pointing(f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}")
    path = {"type": "image", "image": str(model / "orange.png")}
    with LLM(model, pipeline="async_vision") as llm:
        placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
        outputs = llm.chat(
            [
                text_and(found),
                text_and(path),
                text_and(pointing("https://example.com/a.png")),
                text_and(pointing("data:image/png;base64,AAAA")),
                [{"role": "user", "content": f"What is {placeholder}"}],
            ],
            WANTED,
        )
        [plain, short] = llm.generate(
            [
                {"prompt": f"user: What is {placeholder}assistant: ", "images": [path["image"]]},
                {"prompt": f"{placeholder} {placeholder}", "images": [path["image"]]},
            ],
            WANTED,
        )
    by_url, by_path, address, broken, text = outputs
    assert by_url.error is None
    assert len(by_url.token_ids) == 6
    assert by_url.token_ids == by_path.token_ids == plain.token_ids
    assert "image 0: a https address is not fetched" in (address.error or "")
    assert "image 0: it cannot be read" in (broken.error or "")
    assert text.error is None, "a text that spells a placeholder is a text"
    assert short.error == "the prompt has 2 placeholders for images, and 1 images"
    with running(pipeline="async_vision", model=model) as service, service.client() as client:

        def asked(*parts: Any, role: str = "user") -> Any:
            messages = [{**text_and(*parts)[0], "role": role}]
            body = {"messages": messages, **WANTED, "return_token_ids": True}
            return client.post("/v1/chat/completions", json=body)

        answer = asked(found)
        assert answer.status_code == 200, answer.text
        assert tuple(answer.json()["choices"][0]["token_ids"]) == by_url.token_ids
        for parts, role, said in (
            ((pointing("https://example.com/a.png"),), "user", "a https address is not fetched"),
            ((pointing(path["image"]),), "user", "no file is opened"),
            ((pointing("data:image/png;base64,AAAA"),), "user", "image 0: it cannot be read"),
            ((found,), "system", "only messages of the user may have images"),
        ):
            refused = asked(*parts, role=role)
            assert refused.status_code == 400
            assert said in refused.json()["error"]["message"]


def test_a_pipeline_that_encodes_no_images_says_so(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    part = {"type": "image", "image": str(tmp_path / "a.png")}
    with LLM("embedded-draft", pipeline="async") as llm:
        [output] = llm.chat(text_and(part), WANTED)
    assert "nothing encodes them here" in (output.error or "")
