"""A directory that was made to do harm: no code of it runs, and its numbers are not believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from stepweave.models import plausible, pretrained
from stepweave.models.causal_lm import CausalLM
from stepweave.models.chat import Chat, ChatError, TooLong
from stepweave.models.errors import ModelError
from stepweave.models.template_limit import TemplateLimit, at_most_lines
from stepweave.models.tokenizer import load_tokenizer, most_characters
from stepweave.testing.models import save_tiny

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that would be there if code of the directory had run."""
    return tmp_path / "it ran"


def change(file: Path, **keys: Any) -> None:
    stated = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**stated, **keys}))


def plant(folder: Path, mark: Path) -> None:
    """Code under every name that a library is known to have imported."""
    code = f"open({str(mark)!r}, 'w')\nraise SystemExit\n"
    names = ("modeling_evil", "configuration_evil", "tokenization_evil", "setup", "__init__")
    for name in (*names, "custom_generate/generate", "sitecustomize", "kernels/__init__"):
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_no_code_of_a_model_runs(folder: Path, mark: Path, model_type: str) -> None:
    """CVE-2026-22807, CVE-2026-27893, CVE-2026-41523: `auto_map` ran with trust turned off."""
    plant(folder, mark)
    own = {
        "AutoConfig": "configuration_evil.Evil",
        "AutoModelForCausalLM": "modeling_evil.Evil",
        "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
    }
    change(folder / "config.json", auto_map=own, model_type=model_type, trust_remote_code=True)
    change(folder / "tokenizer_config.json", auto_map=own, trust_remote_code=True)
    change(folder / "generation_config.json", custom_generate=str(folder), trust_remote_code=True)
    load_tokenizer(folder)
    if model_type == "llama":
        CausalLM.load(folder)
    else:
        with pytest.raises(ModelError, match="code that comes with a model is never run"):
            CausalLM.load(folder)
    assert not mark.exists()
    assert not [name for name in sys.modules if name.startswith("transformers_modules")]


def test_a_class_that_a_tokenizer_names_is_not_imported(folder: Path, mark: Path) -> None:
    plant(folder, mark)
    for name in ("tokenization_evil.Evil", "os.system", "subprocess.Popen"):
        change(folder / "tokenizer_config.json", tokenizer_class=name)
        with suppress(ModelError):
            assert isinstance(load_tokenizer(folder), PreTrainedTokenizerBase)
        assert not mark.exists()


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("num_hidden_layers", 10**9),
        ("hidden_size", 1 << 40),
        ("intermediate_size", 1 << 40),
        ("vocab_size", 1 << 50),
        ("num_attention_heads", 1 << 30),
        ("num_key_value_heads", 1 << 30),
        ("head_dim", 1 << 30),
    ],
)
def test_numbers_that_the_weights_cannot_fill_are_refused_before_anything_is_made(
    folder: Path, key: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A billion layers were built one by one, and tensors of terabytes were asked for."""

    def made(*_: object, **__: object) -> None:
        raise AssertionError("the model was made")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", made)
    change(folder / "config.json", **{key: number})
    with pytest.raises(ModelError, match=r"config\.json (has|is no configuration)"):
        CausalLM.load(folder)


def test_empty_tensors_do_not_make_numbers_plausible(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    held = load_file(folder / "model.safetensors")
    held["wide"] = torch.empty(1 << 40, 0)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    config = pretrained.load_config(folder)
    plausible.require_plausible("model", folder, config)
    config.hidden_size = 1 << 30
    with pytest.raises(ModelError, match="hidden_size 1073741824"):
        plausible.require_plausible("model", folder, config)


class Layered:
    """A configuration whose layers differ, as transformers has Gemma 4."""

    per_layer_attributes = frozenset({"head_dim", "num_key_value_heads"})
    num_hidden_layers, num_attention_heads = 2, 4

    def __init__(self, *dims: int) -> None:
        self.per_layer_config = [
            SimpleNamespace(head_dim=dim, num_key_value_heads=index + 1)
            for index, dim in enumerate(dims)
        ]

    @property
    def head_dim(self) -> int:
        raise RuntimeError("'head_dim' is a per-layer attribute and may vary across layers")

    num_key_value_heads = head_dim


def test_numbers_that_differ_by_layer_are_read_from_the_layers(folder: Path) -> None:
    plausible.require_plausible("model", folder, Layered(8, 16))
    with pytest.raises(ModelError, match="head_dim 1073741824"):
        plausible.require_plausible("model", folder, Layered(8, 1 << 30))
    assert plausible.stated(Layered(8, 16), "num_key_value_heads") == {1, 2}


# --- the template


def chat(template: str, most: int | None = None) -> Chat:
    tokenizer = load_tokenizer("embedded")
    tokenizer.chat_template = template
    return Chat(tokenizer, most)


ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ lipsum.__globals__['os'].popen('touch MARK').read() }}",
    "{{ self.__init__.__globals__.__builtins__.open('MARK', 'w') }}",
    "{{ messages.append(messages) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ ('%s' | attr('format')).__globals__ }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('MARK', 'w') }}",
    "{{ strftime_now.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch MARK') }}",
    "{{ ''.join(['{0.__class__}']).format(messages) }}",
)


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_reaches_nothing_but_its_messages(template: str, mark: Path) -> None:
    messages = [dict(each) for each in HELLO]
    with suppress(ChatError):
        text = chat(template.replace("MARK", str(mark))).render(messages)
        assert "class" not in text
        assert "root:" not in text
    assert not mark.exists()
    assert messages == HELLO


ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% for a in [1, 2, 3] %}{{ m(n - 1) if n }}{% endfor %}{% endmacro %}"
    "{{ m(60) }}",
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("template", ENDLESS)
def test_a_template_without_end_is_ended(template: str) -> None:
    """CVE-2025-62426, PYSEC-2026-4344: rendering held up the event loop, and had no limit."""
    with pytest.raises(ChatError, match="executes more than 2000000 lines"):
        chat(template).encode(HELLO)


def test_what_a_template_writes_is_not_encoded_where_it_cannot_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = load_tokenizer("embedded")
    most = most_characters(tokenizer, 64)
    found = chat("{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}", most)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was encoded")

    monkeypatch.setattr(type(tokenizer), "__call__", never)
    with pytest.raises(TooLong, match="has 49995 characters; the context holds no more than"):
        found.encode(HELLO)


def test_every_text_that_fits_is_within_the_bound_on_characters() -> None:
    """The bound is of the longest token; no token spells more."""
    tokenizer = load_tokenizer("embedded")
    longest = max(tokenizer.get_vocab(), key=len)
    most = most_characters(tokenizer, 10)
    assert len(longest) * 10 == most
    for text in ("the story of a fox " * 3, "a" * 50, "🙂" * 10, longest * 4):
        count = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert len(text) <= most_characters(tokenizer, count)


def test_a_thousand_messages_are_far_below_the_limit_on_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepweave.models.chat.MAX_TEMPLATE_LINES", 20_000)
    found = Chat(load_tokenizer("embedded"))
    assert len(found.encode(HELLO * 1000)) > 1000


def test_the_limit_counts_lines_of_templates_only_and_gives_tracing_back() -> None:
    seen: list[str] = []

    def mine(frame: Any, event: str, arg: Any) -> None:
        seen.append(event)

    def work(code: str, name: str) -> None:
        exec(compile(code, name, "exec"))

    before = sys.gettrace()
    loop = "for _ in range(100):\n    pass"
    sys.settrace(mine)
    try:
        with at_most_lines(150):
            work(loop, "<other>")
            work("pass", "<template>")
        assert sys.gettrace() is mine
        with pytest.raises(TemplateLimit), at_most_lines(150):
            work(loop, "<template>")
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_marking_a_text_full_of_special_tokens_takes_a_time_that_grows_with_it() -> None:
    """It grew with the square: each token was looked for from the beginning."""
    found = Chat(load_tokenizer("embedded"))
    calls = 0

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            return work(*given)

        return counting

    marking = found._marking

    class Pattern:
        subn = staticmethod(counted(marking._pattern.subn))
        search = staticmethod(counted(marking._pattern.search))

    marking._pattern, real = Pattern(), marking._pattern  # type: ignore[assignment]
    marked = marking.marked("<|user|>" * 2000)
    assert calls <= 3
    assert real.search(marked) is None
