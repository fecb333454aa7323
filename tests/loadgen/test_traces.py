"""Traces in both public formats; what is broken is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.loadgen.traces import Traced, read_trace, trace_of

MOONCAKE = """\
{"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 7]}
{"timestamp": 30000, "input_length": 900, "output_length": 26, "hash_ids": [46, 9]}

{"timestamp": 27500, "input_length": 10, "output_length": 5}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.6805900,396,109\r
"""


def problems(text: str, *, azure: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        trace_of(text, "trace", azure=azure)
    return [str(problem) for problem in raised.value.problems]


def test_mooncake_lines_come_in_the_order_of_time_from_zero() -> None:
    assert trace_of(MOONCAKE, "trace", azure=False) == (
        Traced(0.0, 6955, 52, (46, 47, 7)),
        Traced(0.5, 10, 5),
        Traced(3.0, 900, 26, (46, 9)),
    )


def test_azure_rows_have_seven_decimals_or_a_zone(tmp_path: Path) -> None:
    file = tmp_path / "azure.CSV"
    file.write_bytes(AZURE.encode("utf-8-sig"))
    assert read_trace(file) == (Traced(0.0, 374, 44), Traced(4.0, 396, 109))
    later = "TIMESTAMP,X,GeneratedTokens,ContextTokens\n2024-05-10 00:00:00.25+00:00,?,7,2162\n"
    file.write_text(later + "2024-05-10 00:00:01+00:00,?,8,5\n")
    assert read_trace(file) == (Traced(0.0, 2162, 7), Traced(0.75, 5, 8))


def test_every_broken_line_is_named_at_once() -> None:
    text = MOONCAKE + '{"timestamp": 1}\n[1]\n{"timestamp": 1, "input_length": 2.5, '
    text += '"output_length": 3}\nnothing\n'
    assert problems(text) == [
        "trace:5: has no 'input_length'",
        'trace:6: must be an object with "timestamp", "input_length" and "output_length"',
        "trace:7: 'input_length' must be a whole number from 0 to 16777216, not 2.5",
        "trace:8: is not JSON: Expecting value (column 1)",
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('"timestmp": 1, "input_length": 2, "output_length": 3', "did you mean 'timestmp'"),
        ('"timestamp": NaN, "input_length": 2, "output_length": 3', "a number of ms from 0"),
        ('"timestamp": -1, "input_length": 2, "output_length": 3', "a number of ms from 0"),
        ('"timestamp": "1", "input_length": 2, "output_length": 3', "a number of ms from 0"),
        ('"timestamp": 1, "input_length": 99999999, "output_length": 3', "'input_length' must"),
        ('"timestamp": 1, "input_length": 2, "output_length": true', "'output_length' must"),
        ('"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": 4', "'hash_ids'"),
        ('"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": ["a"]', "'hash_ids'"),
    ],
)
def test_a_line_that_is_wrong_is_refused_with_the_reason(keys: str, said: str) -> None:
    [problem] = problems("\n" + "{" + keys + "}")
    assert problem.startswith("trace:2: ")
    assert said in problem


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2023-11-16 18:15:46,1", "trace:4: has 2 columns, fewer than the header"),
        ("yesterday,1,2", "trace:4: 'TIMESTAMP' must be a date with a time, not 'yesterday'"),
        ("2023-11-16 18:15:46,-1,2", "trace:4: 'ContextTokens' must be a whole number"),
        ("2023-11-16 18:15:46,1,2.5", "trace:4: 'GeneratedTokens' must be a whole number"),
    ],
)
def test_a_row_that_is_wrong_is_refused_with_its_line(row: str, said: str) -> None:
    [problem] = problems(AZURE + row, azure=True)
    assert problem.startswith(said)


def test_a_header_that_lacks_a_column_is_refused() -> None:
    [problem] = problems("TIMESTAMP,ContextToken,GeneratedTokens\n", azure=True)
    assert problem == (
        "trace:1: the header has no column 'ContextTokens' (did you mean 'ContextToken'?)"
    )


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_trace_is_refused(text: str) -> None:
    assert problems(text) == ["trace:1: holds no requests"]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")
