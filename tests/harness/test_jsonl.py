from __future__ import annotations

from pathlib import Path

import pytest

from qualab.errors import BadDataFile, DatasetUnavailable, EmptyDataset
from qualab.harness.sources import in_memory, read_table


def file_of(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_rows_keep_their_line_numbers_past_blank_lines(tmp_path: Path) -> None:
    rows = read_table(file_of(tmp_path, '{"a": 1}\n\n  \n{"a": 2}'), required=["a"])
    assert rows == {1: {"a": 1}, 4: {"a": 2}}


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    rows = read_table(file_of(tmp_path, '\ufeff{"a": "one\u2028two\u0085three"}\r\n{"a": "x"}\n'))
    assert [row["a"] for row in rows.values()] == ["one\u2028two\u0085three", "x"]


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        ('{"question": "q", "answer": "a"}\n{"question": "q", "answer": \n', 2, "not JSON"),
        ('{"question": "q", "answer": "a"}\n["q", "a"]\n', 2, "not a JSON object"),
        ('{"question": "q", "answer": "a"}\n\n{"question": "q"}\n', 3, "no column answer"),
        (b'{"question": "\xff", "answer": "a"}\n', 1, "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str | bytes, line: int, what: str) -> None:
    with pytest.raises(BadDataFile, match=rf"data\.jsonl, line {line}: {what}") as caught:
        read_table(file_of(tmp_path, content), required=["question", "answer"])
    assert "question, answer" in caught.value.hint


def test_without_required_columns_the_first_line_says_them(tmp_path: Path) -> None:
    with pytest.raises(BadDataFile, match="line 2: no column b"):
        read_table(file_of(tmp_path, '{"a": 1, "b": 2}\n{"a": 1, "c": 3}\n'))


def test_columns_are_the_union_in_order_of_first_mention(tmp_path: Path) -> None:
    path = file_of(tmp_path, '{"b": 1}\n{"b": 2, "a": 3}\n')
    assert in_memory(path, read_table(path)).to_dict() == {"b": [1, 2], "a": [None, 3]}


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_an_empty_data_set(tmp_path: Path, content: str) -> None:
    with pytest.raises(EmptyDataset, match=r"data\.jsonl"):
        read_table(file_of(tmp_path, content))


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailable, match=r"none\.jsonl"):
        read_table(tmp_path / "none.jsonl")
