"""Prompts with images: the tokens of the model's own `generate`, whatever else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner.leases import pool_leases
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import CompileFailed
from stepweave.models.images import ImageReader, Picture
from stepweave.models.vision import Encoder, Pixels, Span
from stepweave.requests.attachments import Attachment, Axes, content_of
from stepweave.requests.limits import Limits
from stepweave.requests.params import RequestError
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.serving.engine import Engine
from stepweave.serving.images import Images
from stepweave.serving.pipeline import compiled
from stepweave.testing.engines import fitted, tiny_request
from stepweave.testing.vision import FAMILIES, save_tiny_vision, tiny_vision_model
from tests.graph.shipped_plans import shipped_plan

GRID = (1, 6, 10)  # 15 tokens
SMALL = (1, 4, 4)  # 4 tokens
TEXT = (7, 40, 9, 33, 7, 40)
NEW = 8


@cache
def pixels(seed: int, grid: tuple[int, int, int]) -> Pixels:
    draw = torch.Generator().manual_seed(seed)
    patches = torch.randn(grid[1] * grid[2], 3 * 2 * 4 * 4, generator=draw)
    return Pixels(patches.numpy().tobytes(), grid)


@dataclass(frozen=True)
class Prompt:
    """Tokens, and images in place of None."""

    parts: tuple[int | Pixels, ...]

    def ids(self, encoder: Any) -> list[int]:
        found: list[int] = []
        for part in self.parts:
            many = 1 if isinstance(part, int) else encoder.tokens(part.grid)
            found += [part if isinstance(part, int) else encoder.image_token] * many
        return found

    @property
    def images(self) -> list[Pixels]:
        return [part for part in self.parts if isinstance(part, Pixels)]


ONE, OTHER = pixels(1, GRID), pixels(2, GRID)
PROMPTS = (
    Prompt((*TEXT, ONE, 8, 41)),
    Prompt((*TEXT, OTHER, 8, 41)),  # other pixels for equal placeholders
    Prompt((11, 12, 13, 14, 15)),
    Prompt((5, pixels(3, SMALL), 6, ONE, *TEXT)),
)


@cache
def model(family: str) -> CausalLM:
    return CausalLM.wrap(tiny_vision_model(family).double(), invariant=False)


@cache
def own(family: str) -> tuple[list[int], ...]:
    """What the model's own `generate` makes of the prompts."""
    hf: Any = tiny_vision_model(family).double()
    encoder = model(family).encoder
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt.ids(encoder)])
        given: dict[str, Any] = {}
        if prompt.images:
            patches = [
                torch.frombuffer(bytearray(each.patches), dtype=torch.float32)
                for each in prompt.images
            ]
            given = {
                "pixel_values": torch.cat([each.view(-1, 96) for each in patches]).double(),
                "image_grid_thw": torch.tensor([each.grid for each in prompt.images]),
                "mm_token_type_ids": (ids == hf.config.image_token_id).int(),
            }
        out = hf.generate(
            input_ids=ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0,
            **given,
        )  # fmt: skip
        found.append(out[0, ids.shape[1] :].tolist())
    return tuple(found)


def request(family: str, uid: int, prompt: Prompt, **params: Any) -> Request:
    encoder = model(family).encoder
    assert encoder is not None
    ids = prompt.ids(encoder)
    plain = {"max_tokens": NEW, "ignore_eos": True}
    made = tiny_request(uid, ids, SamplingParams(**{**plain, **params}))
    attached, at = [], 0
    for part in prompt.parts:
        count = 1 if isinstance(part, int) else encoder.tokens(part.grid)
        if isinstance(part, Pixels):
            attached.append(Attachment(at, count, part.patches[:16], part))
        at += count
    made.attachments = tuple(attached)
    if attached:
        spans = [Span(each.start, each.data.grid) for each in attached]
        made.axes = Axes(*encoder.axes(ids, spans))
    return made


def engine(
    family: str,
    *,
    depth: int = 2,
    executor: str = "threads",
    drafter: str | None = None,
    budget: int = 64,
    blocks: int = 100,
    prefix_cache: bool = False,
    check: Any = "off",
    nodes: Mapping[str, Any] | None = None,
) -> Engine:
    more: dict[str, Any] = dict(nodes or {})
    if drafter is not None:
        more["draft"] = {"kind": drafter, "after": "sample", "tokens": 3}
    scheduler = {"max_rows": 3, "token_budget": budget}
    config = load_config("async_vision", {"depth": depth, "scheduler": scheduler, "nodes": more})
    assert isinstance(config, PipelineConfig)
    limits = Limits(
        max_rows=3, token_budget=budget, block_size=4, num_blocks=blocks, context_length=64,
        draft_tokens=3 if drafter else 0, max_queue=100,
    )  # fmt: skip
    return Engine(
        lambda resources: compiled(config, resources), model(family), limits,
        prefix_cache=prefix_cache, executor=executor, check=check, watchdog_s=120.0,
    )  # fmt: skip


def served(built: Engine, requests: Sequence[Request]) -> RequestTable:
    table = built.new_table()
    table.submit_all([fitted(built, each) for each in requests])
    built.run(table)
    table.check_conservation()
    assert [each.error for each in requests] == [None] * len(requests)
    return table


def requests(family: str) -> list[Request]:
    return [request(family, uid, prompt) for uid, prompt in enumerate(PROMPTS)]


RUNS = ((1, "serial"), (2, "threads"), (3, "threads"))
ROOMS: Mapping[str, Mapping[str, Any]] = {
    "room": {},
    "chunks": {"budget": 7},  # an image takes three steps
    "gives way": {"blocks": 16},  # with or without drafts, which take more blocks and fewer steps
    "swaps": {"blocks": 16, "nodes": {"swap": {"after": "schedule", "blocks": 40}}},
    "pages": {"nodes": {"encode": {"rows": 16}}},  # one image at a time
}


CELLS = list(
    product(FAMILIES, RUNS, (None, "ngram", "suffix"), ROOMS, (False, True), ("strict", "off"))
)
DAILY = {
    ("qwen2_5_vl", RUNS[0], None, "chunks", False, "off"),
    ("qwen2_5_vl", RUNS[1], "suffix", "swaps", False, "off"),
    ("qwen3_vl", RUNS[1], None, "chunks", True, "strict"),
    ("qwen3_vl", RUNS[2], "ngram", "gives way", False, "off"),
    ("qwen3_vl", RUNS[2], None, "pages", False, "off"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "run", "drafter", "room", "prefix_cache", "check"),
    [pytest.param(*c, marks=() if c in DAILY else pytest.mark.nightly) for c in CELLS],
)
def test_tokens_are_those_of_the_models_own_generate(
    family: str, run: tuple[int, str], drafter: Any, room: str, prefix_cache: bool, check: Any
) -> None:
    depth, executor = run
    built = engine(
        family, depth=depth, executor=executor, drafter=drafter, prefix_cache=prefix_cache,
        check=check, **ROOMS[room],
    )  # fmt: skip
    asked = requests(family)
    table = served(built, asked)
    assert [each.output_ids for each in asked] == [*own(family)]
    assert table.totals.encoded >= 4
    if room in ("gives way", "swaps"):
        assert table.preemptions > 0


def test_blocks_are_shared_by_equal_images_alone() -> None:
    built = engine("qwen2_5_vl", prefix_cache=True)
    first, other, again = (request("qwen2_5_vl", uid, PROMPTS[uid % 2]) for uid in range(3))
    table = built.new_table()
    for each in (first, other, again):
        table.submit(fitted(built, each))
        built.run(table)
    expected = own("qwen2_5_vl")
    assert [each.output_ids for each in (first, other, again)] == [
        expected[0], expected[1], expected[0],
    ]  # fmt: skip
    assert first.cached_tokens == 0
    assert other.cached_tokens == 4, "the one block before the image"
    assert again.cached_tokens == 20
    assert table.totals.encoded == 3, "the last image was not whole in the cache"


def test_the_encoder_runs_beside_the_forward_pass_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for that pass, which in the order of the plan comes behind it."""
    began, met = threading.Event(), []
    encode, forward = CausalLM.encode, CausalLM.forward

    def waiting(self: CausalLM, image: Any) -> Any:
        met.append(began.wait(10.0))
        return encode(self, image)

    def begins(self: CausalLM, *args: Any, **given: Any) -> Any:
        began.set()
        return forward(self, *args, **given)

    monkeypatch.setattr(CausalLM, "encode", waiting)
    monkeypatch.setattr(CausalLM, "forward", begins)
    text, image = (request("qwen2_5_vl", uid, PROMPTS[at]) for uid, at in enumerate((2, 0)))
    served(engine("qwen2_5_vl"), [text, image])
    assert met == [True]
    assert (text.output_ids, image.output_ids) == (own("qwen2_5_vl")[2], own("qwen2_5_vl")[0])


def test_the_plan_hands_rows_to_the_request_a_step_later() -> None:
    leases = pool_leases(shipped_plan("async_vision"), "pages")
    assert leases["encode", "owner"] == 1
    assert leases["owner", "encode"] >= 1


def test_grammars_and_drafts_give_the_tokens_of_the_plain_loop() -> None:
    found = []
    for depth, executor, drafter in ((1, "serial", None), (3, "threads", "ngram")):
        nodes = {"bitmask": {"after": "forward"}}
        built = engine("qwen3_vl", depth=depth, executor=executor, drafter=drafter, nodes=nodes)
        asked = [
            request("qwen3_vl", uid, PROMPTS[uid], structured_outputs={"regex": "[a-f]{2,9}"})
            for uid in (0, 1)
        ]
        served(built, asked)
        found.append([each.output_ids for each in asked])
        assert all(set(each.text) <= set("abcdef") and each.text for each in asked)
    assert found[0] == found[1]


def test_an_image_for_which_there_never_is_room_is_refused() -> None:
    built = engine("qwen2_5_vl", nodes={"encode": {"rows": 16}})
    large = request("qwen2_5_vl", 0, Prompt((5, pixels(4, (1, 8, 10)), 6)))
    small = request("qwen2_5_vl", 1, PROMPTS[0])
    table = built.new_table()
    table.submit_all([fitted(built, each) for each in (large, small)])
    built.run(table)
    assert "takes 20 tokens, but there is room for 16" in (large.error or "")
    assert small.output_ids == own("qwen2_5_vl")[0]


@pytest.mark.parametrize(
    ("rows", "context_length", "said"),
    [
        (16, 512, "image 1: it takes 24 tokens, but there is room for 16 encoded ones"),
        (512, 32, "image 1: with it the prompt has 32 tokens; the context of 32 tokens must"),
        (512, 33, None),
    ],
)
def test_an_image_for_which_there_is_no_room_is_refused_before_it_is_decoded(
    rows: int, context_length: int, said: str | None, tmp_path: Path
) -> None:
    encoder = Encoder.of(tiny_vision_model())
    assert encoder is not None
    for name, size in {"small": (16, 16), "large": (48, 32)}.items():
        Image.new("RGB", size, "orange").save(tmp_path / name, "PNG")
    reader = ImageReader(f"{save_tiny_vision(tmp_path / 'model')}", 1 << 20, 1 << 20)
    images = Images(encoder, reader, 16, rows, context_length)
    decoded: list[int] = []

    def noted(self: ImageReader, picture: Picture) -> Pixels:
        decoded.append(picture.patches)
        return pixels(0, (1, 2, picture.patches // 2))

    place = encoder.image_token
    ids, sources = [5, place, 6, 7, place, 8], [f"{tmp_path / name}" for name in ("small", "large")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageReader, "pixels", noted)
        if said is None:
            assert len(images.illustrated(ids, sources, files=True).ids) == 32
            assert decoded == [16, 96]
            return
        with pytest.raises(RequestError, match=said) as caught:
            images.illustrated(ids, sources, files=True)
    assert caught.value.code == "SW-LENGTH"
    assert decoded == [16]


def not_finite(made: torch.Tensor) -> torch.Tensor:
    made[-1, 0] = float("nan")
    return made


def no_memory(made: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("out of memory\nand advice")


BROKEN: Mapping[Callable[[torch.Tensor], torch.Tensor], str] = {
    no_memory: "OutOfMemoryError: out of memory",
    lambda made: made[1:]: "ValueError: its encoder made (14, 48) numbers of it, not (15, 48)",
    not_finite: "ValueError: its encoder made numbers of it that are not finite",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("check", ["strict", "off"])
@pytest.mark.parametrize("run", RUNS)
def test_an_image_that_cannot_be_encoded_ends_its_own_request_alone(
    run: tuple[int, str], check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, executor = run
    images = {pixels(10 + at, GRID): how for at, how in enumerate(BROKEN)}
    encode = CausalLM.encode

    def broken(self: CausalLM, image: Pixels) -> torch.Tensor:
        made = encode(self, image)
        return images[image](made) if image in images else made

    monkeypatch.setattr(CausalLM, "encode", broken)
    built = engine(
        "qwen2_5_vl", depth=depth, executor=executor, prefix_cache=True, budget=7, check=check
    )
    bad = [
        request("qwen2_5_vl", 4 + at, Prompt((5, pixels(3, SMALL), *TEXT, each, 8, 41)))
        for at, each in enumerate(images)
    ]
    good = requests("qwen2_5_vl")
    table = built.new_table()
    taking_turns = sorted([*bad, *good], key=lambda each: each.uid % 4)
    table.submit_all([fitted(built, each) for each in taking_turns])
    built.run(table)
    where = "the image at token 11 of the prompt cannot be encoded: "
    assert [each.error for each in bad] == [where + said for said in BROKEN.values()]
    assert [each.output_ids for each in bad] == [[], [], []]
    assert [each.error for each in good] == [None] * 4
    assert [each.output_ids for each in good] == [*own("qwen2_5_vl")]
    assert table.totals.failed_steps == 0


def test_nothing_is_kept_of_tokens_whose_image_was_not_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, calls = CausalLM.encode, list[Pixels]()

    def broken(self: CausalLM, image: Pixels) -> torch.Tensor:
        calls.append(image)
        return encode(self, image) if len(calls) > 1 else no_memory(torch.empty(0))

    monkeypatch.setattr(CausalLM, "encode", broken)
    built = engine("qwen2_5_vl", prefix_cache=True)
    table = built.new_table()
    first, again = (request("qwen2_5_vl", uid, PROMPTS[0]) for uid in (0, 1))
    for each in (first, again):
        table.submit(fitted(built, each))
        built.run(table)
    assert "OutOfMemoryError" in (first.error or "")
    assert again.output_ids == own("qwen2_5_vl")[0]
    assert again.cached_tokens <= len(TEXT)


def test_a_pass_that_fails_leaves_no_image_to_the_next_one() -> None:
    """Where rows of an image are added behind the first layers, these came to other texts."""
    built = engine("qwen3_vl", budget=12)  # no chunk is as long as another
    layer = built.model.hf.get_submodule("model.language_model.layers.0")
    failed: list[int] = []

    def fail(module: Any, args: Any, given: Any) -> None:
        if not failed and built.model._placing is not None and built.model._placing._added:
            failed.append(args[0].shape[1])
            raise torch.OutOfMemoryError("no room for this pass")

    hook = layer.register_forward_pre_hook(fail, with_kwargs=True)
    first = request("qwen3_vl", 9, PROMPTS[0])
    table = built.new_table()
    table.submit(fitted(built, first))
    built.run(table)
    hook.remove()
    assert failed
    assert "no room for this pass" in (first.error or "")
    later = requests("qwen3_vl")
    served(built, [later[2]])  # of text alone
    served(built, [each for each in later if each is not later[2]])
    assert [each.output_ids for each in later] == [*own("qwen3_vl")]


def test_a_device_that_fails_under_the_encoder_ends_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: CausalLM, image: Pixels) -> torch.Tensor:
        raise torch.AcceleratorError("device-side assert triggered")

    built = engine("qwen2_5_vl", depth=1, executor="serial")
    text, image = (request("qwen2_5_vl", uid, PROMPTS[at]) for uid, at in enumerate((2, 0)))
    table = built.new_table()
    monkeypatch.setattr(CausalLM, "encode", broken)
    table.submit_all([fitted(built, each) for each in (text, image)])
    built.run(table)
    said = "node 'encode': op 'encode.device' failed in step 0: AcceleratorError: device-side"
    assert [(each.error or "")[: len(said)] for each in (text, image)] == [said, said]
    assert table.totals.failed_steps == 1


def test_layers_that_take_images_in_are_not_compiled() -> None:
    with pytest.raises(CompileFailed, match="are not compiled"):
        CausalLM.wrap(tiny_vision_model(), invariant=False, compile="layer")


def test_the_content_of_tokens_is_that_of_the_images_they_belong_to() -> None:
    images = (Attachment(3, 4, b"one", None), Attachment(9, 2, b"two", None))
    assert content_of(images, 0, 3) == b""
    assert content_of(images, 2, 4) == content_of(images, 6, 8) != b""
    assert content_of(images, 6, 10).count(b"two") == 1
    assert content_of(images, 7, 9) == b""
