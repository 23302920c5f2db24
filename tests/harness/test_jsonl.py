from __future__ import annotations

from pathlib import Path

import pytest

from qualab.errors import BadDataFile, DatasetUnavailable
from qualab.harness.sources import in_memory, read_table


def file_of(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_rows_have_line_numbers_and_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    rows = read_table(
        file_of(tmp_path, '\ufeff{"b": "one\u2028two\u0085three"}\r\n\n  \n{"b": "x", "a": 3}'), required=["b"]
    )
    assert rows == {1: {"b": "one\u2028two\u0085three"}, 4: {"b": "x", "a": 3}}
    columns = in_memory(tmp_path, rows).to_dict()
    assert columns == {"b": ["one\u2028two\u0085three", "x"], "a": [None, 3]}


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


def test_a_file_without_rows_or_rights_is_named(tmp_path: Path) -> None:
    for content in ("", "\n\n"):
        with pytest.raises(BadDataFile, match=r"data\.jsonl"):
            read_table(file_of(tmp_path, content))
    with pytest.raises(DatasetUnavailable, match=r"none\.jsonl"):
        read_table(tmp_path / "none.jsonl")
