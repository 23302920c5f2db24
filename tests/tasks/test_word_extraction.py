"""Yes or no, and the sentiment, that `tasks/korean` takes from an answer, through lm-eval's filters."""

from __future__ import annotations

import pytest

from tests.tasks.conftest import Extract

NONE = "[invalid]"


@pytest.mark.parametrize(
    "text",
    [
        "예",
        "예.",
        " 예\n",
        "'예'",
        "**예**",
        "네",
        "네, 맞습니다.",
        "예, 같은 뜻입니다.",
        "예입니다.",
        "예\n\n글에 그렇게 나와 있습니다.",
        "답: 예",
        "정답은 예입니다.",
        "답은 '예'입니다.",
        "따라서 예",
        "맞습니다.",
        "Yes",
        "yes.",
        "글에 그렇게 나와 있으므로 '예'입니다.",
        "글의 내용과 같습니다.\n\n예",
        "아니오\n\n다시 보니 답은 예입니다.",
        "<think>아니오?</think>예",
    ],
)
def test_a_yes_is_read(yes_no: Extract, text: str) -> None:
    assert yes_no(text) == "예"


@pytest.mark.parametrize(
    "text",
    [
        "아니오",
        "아니요",
        "아니요.",
        "아뇨",
        "**아니오**",
        "'아니오'",
        "아니오, 다른 뜻입니다.",
        "아니오입니다.",
        "답: 아니오",
        "답은 '아니요'입니다.",
        "답은 **아니오**입니다.",
        "아닙니다.",
        "그렇지 않습니다.",
        "No",
        "No.",
        "두 낱말은 뜻이 다릅니다. 따라서 답은 '아니오'입니다.",
        "다른 뜻으로 쓰였습니다.\n아니오",
        "답은 예가 아니라 아니오입니다.",
        "예\n\n다시 보니 답은 아니오입니다.",
        "<think>예? 아니오?</think>아니오",
    ],
)
def test_a_no_is_read(yes_no: Extract, text: str) -> None:
    assert yes_no(text) == "아니오"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "예를 들어 토지는 대상이 아닙니다",
        "예시: 토지",
        "예전에는 그랬습니다",
        "예산이 부족하다",
        "네덜란드",
        "예 또는 아니오",
        "예/아니오",
        "답: 예/아니오",
        "Nothing",
        "Yesterday",
        "Not sure",
        "두 문장의 낱말은 비슷합니다.",
        "<think>예",
    ],
)
def test_what_is_neither_yes_nor_no_is_invalid(yes_no: Extract, text: str) -> None:
    assert yes_no(text) == NONE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("긍정", "긍정"),
        ("**긍정**", "긍정"),
        ("'긍정'", "긍정"),
        ("긍정적", "긍정"),
        ("긍정적입니다.", "긍정"),
        ("긍정 (만족)", "긍정"),
        ("긍정\n\n만족한다는 말이 있습니다.", "긍정"),
        ("답: 긍정", "긍정"),
        ("정답은 '긍정'입니다.", "긍정"),
        ("이 상품평은 긍정적입니다.", "긍정"),
        ("긍정적인 상품평입니다.", "긍정"),
        ("이 문장은 긍정적인 감정을 나타냅니다.", "긍정"),
        ("부정적인 표현이 있지만 전체적으로는 긍정적입니다.", "긍정"),
        ("Positive", "긍정"),
        ("부정", "부정"),
        ("부정적", "부정"),
        ("판단: 부정", "부정"),
        ("답은 부정입니다.", "부정"),
        ("이 상품평은 부정적입니다.", "부정"),
        ("부정적인 평가로 판단됩니다.", "부정"),
        ("긍정적인 말도 있지만 전체적으로 부정적입니다.", "부정"),
        ("긍정이 아니라 부정입니다.", "부정"),
        ("negative", "부정"),
        ("", NONE),
        ("긍정 또는 부정", NONE),
        ("긍정/부정", NONE),
        ("긍정적이지 않습니다.", NONE),
        ("긍정인지 부정인지 모르겠습니다.", NONE),
        ("좋은 상품평입니다.", NONE),
        ("<think>긍정", NONE),
    ],
)
def test_a_sentiment_is_read(sentiment: Extract, text: str, expected: str) -> None:
    assert sentiment(text) == expected
