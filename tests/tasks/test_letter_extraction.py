"""The letter that `tasks/korean/_letter_yaml` takes from an answer, through lm-eval's filters."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.conftest import Extract, extractor

NONE = "[invalid]"

ALONE = [
    ("B", "B"),
    (" B", "B"),
    ("\nB\n", "B"),
    ("B.", "B"),
    ("B)", "B"),
    ("(B)", "B"),
    ("[B]", "B"),
    ("`B`", "B"),
    ('"B"', "B"),
    ("「B」", "B"),
    ("**B**", "B"),
    ("- B", "B"),
    ("✅ B", "B"),
    ("Ｂ", "B"),
    ("（Ｂ）", "B"),
    ("b", "B"),
    ("(b)", "B"),
    ("b.", "B"),
    ("B번", "B"),
    ("B번입니다.", "B"),
    ("B입니다.", "B"),
    ("B이다.", "B"),
    ("E", "E"),
]

FIRST = [
    ("B. 서울", "B"),
    ("B: 서울", "B"),
    ("B) 서울", "B"),
    ("(B) 서울", "B"),
    ("(B) 서울 (C) 대구", "B"),
    ("**B. 서울**", "B"),
    ("B 서울", "B"),
    ("B\n서울", "B"),
    ("B(서울)", "B"),
    ("B - 서울", "B"),
    ("B, 서울", "B"),
    ("선택지 B", "B"),
    ("Option B is correct.", "B"),
    ("B is correct.", "B"),
    ("B\n\n해설: A는 부산, C는 대구, D는 인천입니다.", "B"),
    ("B\n\nA. 부산은 항구입니다.\nC. 대구는 내륙입니다.", "B"),
    ("B. 서울\n\nA. 부산은 수도가 아닙니다.", "B"),
    ("A. 90도\n\nA. 90도\n\nA. 90", "A"),
]

STATED = [
    ("정답: B", "B"),
    ("정답 : B", "B"),
    ("정답 B", "B"),
    ("정답(B)", "B"),
    ("정답 → B", "B"),
    ("### 정답\nB", "B"),
    ("정답:\n\nB", "B"),
    ("**정답: B**", "B"),
    ("**정답:** B", "B"),
    ("정답: **(B)** 서울", "B"),
    ("정답은 B", "B"),
    ("정답은 B입니다.", "B"),
    ("정답은 B 입니다.", "B"),
    ("정답은 (B)입니다.", "B"),
    ("정답은 **B**입니다.", "B"),
    ("정답은 'B'입니다.", "B"),
    ('정답은 "B. 서울"입니다.', "B"),
    ("정답은 B번입니다.", "B"),
    ("정답은 Ｂ입니다.", "B"),
    ("정답은 b입니다.", "B"),
    ("정답은 보기 B입니다.", "B"),
    ("정답은 선택지 (B)입니다.", "B"),
    ("정답은 B라고 생각합니다.", "B"),
    ("제 생각에 정답은 B인 것 같습니다.", "B"),
    ("정답은 다음과 같습니다: B. 서울", "B"),
    ("정답은 다음과 같습니다.\n\nB", "B"),
    ("정답을 고르면 B입니다.", "B"),
    ("정답이 B인 이유는 다음과 같습니다.", "B"),
    ("답은 B예요.", "B"),
    ("답변: (B) 서울", "B"),
    ("선택: B", "B"),
    ("결론: B", "B"),
    ("B가 정답입니다.", "B"),
    ("(B)가 가장 적절합니다.", "B"),
    ("저는 B를 선택하겠습니다.", "B"),
    ("가장 알맞은 것은 B입니다.", "B"),
    ("옳지 않은 것은 B입니다.", "B"),
    ("가장 알맞은 낱말은 B. 가멸차다입니다.", "B"),
    ("Answer: B", "B"),
    ("answer: b", "B"),
    ("The answer is B.", "B"),
    ("The correct answer is (B).", "B"),
    ("The correct option is B.", "B"),
    ("The answer is A because Seoul is the capital.", "A"),
    (r"$\boxed{B}$", "B"),
    (r"\boxed{\text{B}}", "B"),
]

STATED_AFTER_AN_EXPLANATION = [
    ("A는 부산이고 C는 대구입니다. 따라서 정답은 B입니다.", "B"),
    ("A는 틀렸고 B가 맞습니다.", "B"),
    ("B와 C를 비교하면 정답은 C입니다.", "C"),
    ("B형 간염은 아니므로 정답은 C입니다.", "C"),
    ("서울은 대한민국의 수도입니다.\n\n따라서 B", "B"),
    ("서울은 대한민국의 수도입니다.\n\nB", "B"),
    ("서울이 수도입니다.\n\n**B**", "B"),
    ("오답은 A이고 정답은 B입니다.", "B"),
]

LAST_STATEMENT_WINS = [
    ("정답: A\n\n다시 생각해 보니 정답은 B입니다.", "B"),
    ("A\n\n아니요, 정답은 B입니다.", "B"),
    ("정답은 A가 아니라 B입니다.", "B"),
    ("A가 정답이 아니고 B가 정답입니다.", "B"),
    ("정답: B\n\n해설: A가 맞지 않는 이유는 부산이 수도가 아니기 때문입니다.", "B"),
    ("정답: B, C는 대구입니다.", "B"),
]

AFTER_REASONING = [
    ("<think>정답은 A일까? A</think>B", "B"),
    ("<think>\nA가 맞나?\n</think>\n\n정답은 B입니다.", "B"),
    ("<think>정답은 A</think>잘 모르겠습니다.", NONE),
    ("<think>정답은 A인 것 같은데", NONE),
]

NOT_AN_ANSWER = [
    ("", NONE),
    ("모르겠습니다.", NONE),
    ("서울", NONE),
    ("2", NONE),
    ("②", NONE),
    ("F", NONE),
    ("정답은 없습니다.", NONE),
    ("정답: 서울", NONE),
    ("정답은 A가 아닙니다.", NONE),
    ("A와 B 둘 다 맞습니다.", NONE),
    ("A, B", NONE),
    ("A/B", NONE),
    ("정답은 A, B입니다.", NONE),
    ("정답은 A 또는 B입니다.", NONE),
    ("A 선택지는 틀렸습니다.", NONE),
    ("A는 부산, B는 서울, C는", NONE),
    ("A. 부산\nB. 서울\nC. 대구\nD. 인천", NONE),
    ("(A) 부산\n(B) 서울", NONE),
]

INSIDE_A_WORD = [
    ("Seoul", NONE),
    ("Busan", NONE),
    ("Apple", NONE),
    ("BTS", NONE),
    ("DNA", NONE),
    ("A dog is an animal.", NONE),
    ("a dog", NONE),
    ("Because it is big.", NONE),
    ("E-mail", NONE),
    ("vitamin-C", NONE),
    ("D.C.이다", NONE),
    ("U.S.A", NONE),
    ("C++ 언어입니다.", NONE),
    ("B2B 거래입니다.", NONE),
    ("A4 용지", NONE),
    ("A형입니다.", NONE),
    ("비타민 C가 많은 과일입니다.", NONE),
    ("정답: Cat", NONE),
    ("정답은 Apple입니다.", NONE),
    ("정답은 A4입니다.", NONE),
    ("정답은 A형입니다.", NONE),
    ("Answer: Dog", NONE),
    ("Answer: a dog", NONE),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *ALONE,
        *FIRST,
        *STATED,
        *STATED_AFTER_AN_EXPLANATION,
        *LAST_STATEMENT_WINS,
        *AFTER_REASONING,
        *NOT_AN_ANSWER,
        *INSIDE_A_WORD,
    ],
)
def test_a_phrasing_gives_its_letter(letter: Extract, text: str, expected: str) -> None:
    assert letter(text) == expected


EXTRACT = extractor("_letter_yaml")

LATIN_WORD = st.text(string.ascii_letters, min_size=2, max_size=12)


@given(word=LATIN_WORD, before=st.sampled_from(["", "정답: ", "정답은 ", "(", "**", "따라서 "]))
def test_no_letter_is_taken_from_a_latin_word(word: str, before: str) -> None:
    assert EXTRACT(before + word) == NONE


@given(option=st.sampled_from("ABCDE"), before=st.sampled_from(["", "정답: ", "(", "**", "답은 "]))
def test_every_letter_is_taken(option: str, before: str) -> None:
    assert EXTRACT(before + option) == option


@pytest.mark.parametrize("unit", ["A는 ", "정답은 ", "정답 \n", "(**[", "A, B ", "은 A ", "\n"])
def test_a_long_text_without_an_answer_is_read_quickly(letter: Extract, unit: str) -> None:
    started = time.perf_counter()
    letter(unit * (2_000 // len(unit)) + "?")
    assert time.perf_counter() - started < 2
