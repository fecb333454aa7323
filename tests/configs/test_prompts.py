from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.prompts import PromptLine, prompt_of, read_prompts


def written(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "prompts.jsonl"
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def test_a_line_says_everything_about_a_request(tmp_path: Path) -> None:
    line = (
        '{"id": "a", "prompt": "Hi", "max_tokens": 5, "temperature": 0.7, "top_p": 0.9,'
        ' "top_k": 40, "seed": 7, "stop": ["\\n"], "ignore_eos": true,'
        ' "structured_outputs": {"json": {"type": "object"}}}'
    )
    (found,) = read_prompts(written(tmp_path, line))
    assert (found.id, found.prompt) == ("a", "Hi")
    said = found.parameters
    assert said.pop("structured_outputs").request() == {"json": {"type": "object"}}
    assert said == {
        **{"max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "top_k": 40},
        **{"seed": 7, "stop": ("\n",), "ignore_eos": True},
    }


def test_what_a_line_leaves_out_is_not_said(tmp_path: Path) -> None:
    (found,) = read_prompts(written(tmp_path, '{"prompt": "Hi"}'))
    assert found == PromptLine(prompt="Hi")
    assert found.parameters == {}


def test_one_stop_string_and_a_numbered_id_are_welcome(tmp_path: Path) -> None:
    (found,) = read_prompts(written(tmp_path, '{"prompt": "Hi", "stop": "x", "id": 3}'))
    assert (found.parameters, found.id) == ({"stop": ("x",)}, "3")


def test_messages_stand_in_for_a_prompt(tmp_path: Path) -> None:
    (found,) = read_prompts(written(tmp_path, '{"messages": [{"role": "user", "content": "Hi"}]}'))
    assert found.messages is not None
    assert found.messages[0].content == "Hi"


def test_token_ids_stand_in_for_a_prompt(tmp_path: Path) -> None:
    (found,) = read_prompts(written(tmp_path, '{"prompt_token_ids": [3, 0, 5]}'))
    assert found.prompt_token_ids == (3, 0, 5)
    assert found.parameters == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("json", '{"type": "nonsense"}'),
        ("json", '"{"'),
        ("regex", '"(("'),
        ("grammar", '"root ::="'),
        ("choice", "[]"),
        ("json_object", "true"),
    ],
)
def test_whether_a_grammar_is_one_is_not_decided_here(tmp_path: Path, key: str, value: str) -> None:
    line = f'{{"prompt": "x", "structured_outputs": {{"{key}": {value}}}}}'
    (found,) = read_prompts(written(tmp_path, line))
    assert list(found.parameters["structured_outputs"].request()) == [key]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "x"', "is not JSON"),
        ("nonsense", "is not JSON"),
        ("[1]", "must be an object"),
        ('{"prompt": "x", "max_token": 3}', "unknown key 'max_token' (did you mean 'max_tokens'?)"),
        ('{"promt": "x"}', "(did you mean 'prompt'?)"),
        ("{}", "needs either prompt, prompt_token_ids or messages"),
        ('{"messages": null}', "needs either prompt, prompt_token_ids or messages"),
        ('{"prompt": "", "prompt_token_ids": [5]}', "has prompt and prompt_token_ids: give one of"),
        ('{"prompt_token_ids": []}', "prompt_token_ids needs at least 1"),
        ('{"prompt_token_ids": [-1]}', "prompt_token_ids[0] must be at least 0"),
        ('{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', "prompt and messages"),
        ('{"prompt": "x", "prompt": "y"}', "duplicate key 'prompt'"),
        ('{"prompt": 3}', "prompt must be text, not 3"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens must be at least 1"),
        ('{"prompt": "x", "max_tokens": 99999999999}', "max_tokens must be at most"),
        ('{"prompt": "x", "temperature": -1}', "temperature must be at least 0"),
        ('{"prompt": "x", "temperature": NaN}', "NaN is not a JSON number"),
        ('{"prompt": "x", "temperature": 1e999}', "finite"),
        ('{"prompt": "x", "top_p": 0}', "top_p must be more than 0"),
        ('{"prompt": "x", "top_k": "5"}', "top_k must be a whole number"),
        ('{"prompt": "x", "seed": -1}', "seed must be at least 0"),
        ('{"prompt": "x", "stop": [""]}', "stop[0] must not be empty"),
        ('{"prompt": "x", "stop": ' + str(["x"] * 17).replace("'", '"') + "}", "more than 16"),
        ('{"prompt": "x", "structured_outputs": {}}', "exactly one of json, json_object"),
        ('{"prompt": "x", "structured_outputs": {"regex": "a", "json_object": true}}', "exactly"),
        ('{"prompt": "x", "structured_outputs": {"regx": "a"}}', "(did you mean 'regex'?)"),
        ('{"prompt": "x", "structured_outputs": {"json_object": false}}', "can only be true"),
        ('{"prompt": "x", "max_tokens": ' + "9" * 5000 + "}", "not usable JSON"),
        ('{"prompt": ' + "[" * 100_000, "nested"),
        ('{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_a_broken_line_is_told_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prompts(written(tmp_path, '{"prompt": "fine"}', "", line))
    assert caught.value.line == 3
    assert said in caught.value.message


def test_every_broken_line_is_listed(tmp_path: Path) -> None:
    lines: list[str | bytes] = [
        '{"prompt": "fine"}',
        "broken",
        '{"prompt": "fine"}',
        '{"promt": "x"}',
        b"\xff",
    ]
    with pytest.raises(ConfigError) as caught:
        read_prompts(written(tmp_path, *lines))
    assert {problem.mark.line for problem in caught.value.problems} == {2, 4, 5}


def test_two_lines_cannot_have_one_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is that of line 1 already"):
        read_prompts(written(tmp_path, '{"prompt": "x", "id": "a"}', '{"prompt": "y", "id": "a"}'))


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompts(written(tmp_path, "", " "))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_requests_from_python_are_checked_alike() -> None:
    assert prompt_of("Hi") == prompt_of({"prompt": "Hi"}) == PromptLine(prompt="Hi")
    with pytest.raises(ConfigError, match="did you mean 'prompt'"):
        prompt_of({"promt": "Hi"})
    with pytest.raises(ConfigError, match="not plain data"):
        prompt_of({"prompt": object()})


def test_several_faults_of_messages_are_told_one_by_one_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"messages": [{"role": "x", "content": 5}, {"content": "a"}, 7]}\n'
        '{"messages": [{"role": "user", "content": "x", "naem": 1}]}\n'
        '{"messages": []}\n'
    )
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    assert [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems] == [
        '1: messages[0].role cannot be "x" (known: assistant, system, user)',
        "1: messages[0].content must be text, not 5",
        "1: messages[1] lacks the key 'role'",
        "1: messages[2] must be a mapping, not 7",
        "2: messages[0]: unknown key 'naem' (known: content, role)",
        "3: messages needs at least 1 of them",
    ]
