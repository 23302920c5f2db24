"""Prompts whose speed is measured: their lengths, that they are the same again, and a user's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from qualab.errors import UsageError
from qualab.model.names import Work
from qualab.run.workloads import read_prompts, workload
from tests.streaming_server import tokens

OURS = [work for work in Work if work is not Work.OWN]


async def tokenize(texts: Sequence[str]) -> list[list[int]]:
    return [[1] * len(tokens(text)) for text in texts]


@pytest.mark.parametrize("work", OURS)
@pytest.mark.parametrize("n_tokens", [128, 1000, 20_000])
async def test_a_prompt_has_the_length_that_is_asked_for(work: Work, n_tokens: int) -> None:
    texts = await workload(work, n_tokens, 6, seed=7, repeat=0, tokenize=tokenize)
    assert [len(tokens(text)) for text in texts] == [pytest.approx(n_tokens, rel=0.03)] * 6
    assert texts == await workload(work, n_tokens, 6, seed=7, repeat=0, tokenize=tokenize)


@pytest.mark.parametrize("work", OURS)
async def test_no_prompt_begins_as_another_does(work: Work) -> None:
    texts: list[str] = []
    for seed, repeat in ((1, 0), (1, 1), (1, 2), (2, 0)):
        texts += await workload(work, 256, 8, seed=seed, repeat=repeat, tokenize=None)
    assert len({text[:6] for text in texts}) == len(texts)
    assert not [text for text in texts if "{" in text and work is not Work.CODE]
    n_characters = 256 * (2 if work is Work.KOREAN else 4)
    assert [len(text) for text in texts] == [pytest.approx(n_characters, rel=0.05)] * len(texts)


async def test_a_user_s_prompts_come_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"prompt": "하나"}\n\n{"messages": [{"role": "system", "content": "two"}, {"role": "user", "content": "2"}]}\n'
    )
    own = read_prompts(path)
    assert own == ("하나", "two\n\n2")
    given = [await workload(Work.OWN, 0, 3, seed=1, repeat=repeat, tokenize=tokenize, own=own) for repeat in (0, 1)]
    texts = [text.partition("\n")[2] for texts in given for text in texts]
    assert sorted(texts) == sorted(own * 3)
    assert texts[:2] == texts[2:4]
    (tmp_path / "own.txt").write_text("one\r\n\r\n two \n")
    assert read_prompts(tmp_path / "own.txt") == ("one", "two")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": 1}\n', "line 2: neither"),
        ("a.jsonl", b'{"prompt": "x"}\n\nplain\n', "line 3: neither"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', "line 1: neither"),
        ("a.jsonl", b'["x"]\n', "line 1: neither"),
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"\xff\xfe", "Cannot read"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, name: str, content: bytes, error: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=error):
        read_prompts(tmp_path / name)
