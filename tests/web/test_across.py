"""Search, differences word by word, further answers, two comparisons beside each other, and a label's trend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qualab.model.items import Answer, OutcomeFilter
from qualab.model.names import ArmName, Language
from qualab.report.words import Words
from qualab.service.api.item_page import MOST_WORDS, pair
from qualab.service.words import Wording
from tests.app.fakes import reply
from tests.web.conftest import GAINS, LOSSES, N_ITEMS, OTHER, Site, Watched
from tests.web.test_items import numbers

Make = Callable[..., Watched]
WORDING = Wording(language=Language.ENGLISH)


def answered(arm: ArmName, text: str) -> Answer:
    return Answer(arm=arm, position=0, choice=0, repeat=0, request_hash=b"h" * 16, reply=reply(text))


def test_items_are_searched_by_text_and_matches_are_counted(looked: Watched, site: Site) -> None:
    base = f"/comparisons/{site.small}/items"
    looked.open(base)
    assert looked.page.get_by_role("status").inner_text() == f"{N_ITEMS} of {N_ITEMS} items"
    looked.page.get_by_label("Text in question or answers").fill("NEVER")
    looked.page.get_by_role("button", name="Filter").click()
    assert (numbers(looked), looked.page.get_by_role("status").inner_text()) == ({OTHER}, f"1 of {N_ITEMS} items")
    looked.page.locator("td.name a").click()
    looked.page.wait_for_url(lambda url: "text=NEVER" in url)
    rest = site.service.client.get(f"/v1{base}", params={"text": "no ", "limit": 50}).json()["entries"]
    assert {entry["doc_id"] for entry in rest} == {*GAINS, OTHER}
    both = site.service.client.get(f"/v1{base}", params={"text": "no ", "change": "gain"}).json()["entries"]
    assert {entry["doc_id"] for entry in both} == set(GAINS)
    for nothing in ("1_", "zebra", "❤"):
        assert site.service.client.get(f"/v1{base}", params={"text": nothing}).json()["entries"] == []
    assert site.service.client.get(f"/v1{base}?text=").status_code == 422
    assert site.service.store.n_outcomes(site.small, OutcomeFilter(text="<SCRIPT>")) == 1


def test_differences_are_marked_word_by_word_and_long_texts_at_their_first_word() -> None:
    baseline, candidate = "It is 12 apples.\nSo 12 it is, yes", "It is 13 apples.\nSo 13 it is, yes indeed"
    shown = pair(0, answered(ArmName.BASELINE, baseline), answered(ArmName.CANDIDATE, candidate), WORDING)
    one, other = ([text for text, is_own in side.parts if is_own] for side in shown.sides)
    assert (one, other) == (["2", " 12"], ["3", " 13", " indeed"])
    for side, text in zip(shown.sides, (baseline, candidate), strict=True):
        assert side.shared + "".join(part for part, _ in side.parts) == text
    long = " word" * (MOST_WORDS + 1)
    shown = pair(0, answered(ArmName.BASELINE, f"a{long}"), answered(ArmName.CANDIDATE, f"b{long}"), WORDING)
    assert [[is_own for _, is_own in side.parts] for side in shown.sides] == [[True, False], [True, False]]


def test_further_answers_stand_in_columns(looked: Watched, site: Site) -> None:
    position = site.positions[LOSSES[0]]
    again = [replace(answered(ArmName.BASELINE, f"run {run}"), position=position, run=run) for run in (1, 2)]
    site.service.store.add_answers(site.small, again)
    looked.open(f"/comparisons/{site.small}/items/{position}")
    columns = looked.page.locator(".columns section.side")
    assert columns.all_inner_texts() == ["baseline, run 1 again\nrun 1", "baseline, run 2 again\nrun 2"]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_two_comparisons_stand_beside_each_other(make_page: Make, site: Site, language: str) -> None:
    looked = make_page(viewport={"width": 390, "height": 800}, may_fail=True)
    looked.open(f"/comparisons/{site.small}?lang={language}")
    looked.page.locator("#other").fill(site.large)
    looked.page.locator(".with button").click()
    looked.page.locator("h1").wait_for()
    text = looked.page.locator("main").inner_text()
    words = Words(language=Language(language))
    assert words.name("INVALID") in text
    assert words.name("INCONCLUSIVE") in text
    assert words("across foreign", what=(words("tasks"),)) in text
    assert "sums/exact_match,none" in text
    assert "sampling.max_tokens" in text or "tasks." in text
    assert looked.page.evaluate("document.documentElement.scrollWidth") == 390
    looked.open(f"/comparisons/{site.small}/with?other={site.small}&lang={language}")
    assert words("across same plan") in looked.page.locator("main").inner_text()
    assert looked.open(f"/comparisons/{site.small}/with?other=none").status == 404


def test_a_labels_trend_shows_each_comparison_with_its_interval(make_page: Make, site: Site) -> None:
    looked = make_page(may_fail=True)
    looked.open(f"/comparisons/{site.large}")
    looked.page.get_by_role("link", name="Trend of “release 12”").click()
    report = site.service.client.get(f"/v1/comparisons/{site.large}/report?format=json").json()
    size = next(line["text"] for line in report["box"] if line["id"] == "gain")
    assert looked.page.locator("figure.forest svg").count() == 1
    assert site.large in looked.page.locator("table").inner_text()
    assert "2.23" in looked.page.locator("table").inner_text()
    assert "2.23" in size
    looked.open("/trend?label=none+such")
    assert looked.page.locator("table").count() == 0
