import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepweave.configs.errors import ConfigError
from stepweave.configs.yaml_source import MAX_BYTES, parse_yaml, read_yaml


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "it.yaml")
    return caught.value


def test_scalars_follow_the_core_schema_of_yaml_1_2() -> None:
    text = "[no, 1e-3, 1:30, 0o17, 0x1F, 017, ~, '', true, .5, 2024-01-01, '1', 1_000, +7]"
    assert parse_yaml(text, "it.yaml").plain() == [
        *("no", 0.001, "1:30", 15, 31, 17, None, "", True, 0.5, "2024-01-01", "1", "1_000", 7)
    ]


def test_every_part_knows_its_line_and_column() -> None:
    found = parse_yaml("a: 1\nb:\n  - c: [x, y]\n", "it.yaml")
    assert str(found.at(("b", 0, "c", 1)).mark) == "it.yaml:3:12"
    assert str(found.at(("b", 0, "c")).key) == "it.yaml:3:5"


def test_a_place_that_does_not_exist_is_that_of_its_nearest_parent() -> None:
    found = parse_yaml("a:\n  b: 1\n", "it.yaml")
    assert str(found.at(("a", "missing", 3)).mark) == "it.yaml:2:3"


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "duplicate key 'a' (first at it.yaml:1:1)"),
        ("a:\n  b: 1\n  b: 2\n", 3, 3, "duplicate key 'b'"),
        ("a: !!python/object:os.system x\n", 1, 4, "tags are not allowed"),
        ("a: !thing {b: 1}\n", 1, 4, "tags are not allowed"),
        ("!thing\na: 1\n", 1, 1, "tags are not allowed"),
        ("a: &x [*x]\n", 1, 8, "no complete anchor"),
        ("a: *nowhere\n", 1, 4, "alias *nowhere"),
        ("a: 1\n---\nb: 2\n", 3, 1, "more than one document"),
        ("a: [1, 2\n", 2, 1, "not valid YAML"),
        ("a: b: c\n", 1, 5, "not valid YAML"),
        ("\ta: 1\n", 1, 1, "not valid YAML"),
        ("? [a]\n: 1\n", 1, 3, "a key must be plain text"),
        ("", 1, 1, "is empty"),
        ("# nothing\n", 1, 1, "is empty"),
        ('a: "\\ud800"\n', 1, 4, "surrogate"),
        ("a: " + "9" * 5000, 1, 4, "is not a usable number: it has 5000 digits"),
        ("a: 1\nb: {c: 1\nd: 2", 3, 2, "; it begins at line 2"),
        ('a: 1\nb: "c\n', 3, 1, "found unexpected end of stream; it begins at line 2"),
        ("a:\n\tb: 1\n", 2, 1, "indent with spaces, not with tabs"),
        ("a: write: b\n", 1, 9, "quote a text that has `: ` in it"),
        ("- {a: write: b}\n", 1, 12, "quote a text that has `: ` in it"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, 3, "`<<` is not read: write the keys"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, line: int, column: int, said: str) -> None:
    error = refused(text)
    assert (error.line, error.column) == (line, column)
    assert said in error.message


def test_an_escape_beyond_unicode_is_refused() -> None:
    assert "not valid YAML" in refused('a: "\\UFFFFFFFF"').message


def test_a_control_character_is_refused_with_its_line() -> None:
    assert refused("a: 1\nb: \x01\n").line == 2


@pytest.mark.parametrize("deep", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000])
def test_deep_nesting_is_refused_at_once(deep: str) -> None:
    started = time.perf_counter()
    assert "levels deep" in refused(deep).message
    assert time.perf_counter() - started < 5


def test_an_alias_bomb_does_not_go_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert "aliases expanded" in refused("\n".join(lines)).message


def test_aliases_do_not_get_around_the_limit_on_depth() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 300))]
    assert "levels deep" in refused("\n".join(lines)).message


def test_a_few_aliases_are_welcome() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "it.yaml").plain()["c"] == {"b": 1}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: " + b"x" * MAX_BYTES)
    with pytest.raises(ConfigError, match="larger than"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"a: \xff\n", "not UTF-8"), (b"- 1\n", "must be a mapping"), (b"just text\n", "mapping")],
)
def test_a_file_must_be_a_mapping_in_utf8(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "it.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_yaml(path)


def test_a_directory_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"\\#%@`?, \n\t0123~<=\ufeff\x85xuU"), max_size=60))
def test_any_text_is_either_data_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        parse_yaml(text, "it.yaml").plain()
