"""A report that was made is given again as long as it is what would be made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from qualab.errors import ComparisonNotFound, InvalidValue
from qualab.model.comparison import SignOff
from qualab.model.names import Language, Verdict
from qualab.model.registry import AuditEntry
from qualab.report.model import report_model
from qualab.service.viewing import comparison as kept
from qualab.service.viewing.comparison import Reports
from tests.api.conftest import InlineJobs, Service, make_service
from tests.app.fakes import START

ENTRY = AuditEntry(at=START, who="x", action="y", subject="z", details={})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    calls = SimpleNamespace(n=0)

    def made(*asked: Any) -> Any:
        calls.n += 1
        return report_model(*asked)

    monkeypatch.setattr(kept, "report_model", made)
    return calls


@pytest.fixture
def working() -> Iterator[tuple[Service, str]]:
    jobs = InlineJobs()
    service = make_service(jobs=jobs)
    jobs.begin(service.desk)
    with service.client:
        yield service, service.finished()
    jobs.close()


def test_it_is_made_once_a_language(working: tuple[Service, str], counted: SimpleNamespace) -> None:
    service, found = working
    reports = Reports(service.desk)
    for language in (*Language, *Language):
        made = reports.get(found, language)
        assert made == report_model(service.bench.store, service.registry, found, language)
        assert made is reports.get(found, language)
    assert counted.n == len(Language)


def test_it_is_made_again_once_something_has_changed(working: tuple[Service, str], counted: SimpleNamespace) -> None:
    service, found = working
    store, reports = service.bench.store, Reports(service.desk)
    reports.get(found, Language.ENGLISH)
    analysis = store.analysis(found)
    assert analysis is not None
    signed = SignOff(
        comparison_id=found,
        plan_hash=analysis.plan_hash,
        analysis_hash="a" * 64,
        verdict=analysis.verdict,
        signed_by="me",
        note="",
        override="",
        obstacles=(),
        signed_at=START,
    )
    service.registry.sign_off(signed, entry=ENTRY)
    assert reports.get(found, Language.ENGLISH) == report_model(store, service.registry, found, Language.ENGLISH)
    store.put_analysis(replace(analysis, verdict=Verdict.INVALID), now=START + timedelta(hours=1))
    assert reports.get(found, Language.ENGLISH).verdict.text == "INVALID"
    assert counted.n == 3


def test_few_are_kept(working: tuple[Service, str], monkeypatch: pytest.MonkeyPatch, counted: SimpleNamespace) -> None:
    service, found = working
    monkeypatch.setattr(kept, "MOST", 1)
    reports = Reports(service.desk)
    for language in (*Language, *Language):
        reports.get(found, language)
    assert counted.n == 2 * len(Language)


def test_what_is_not_there_is_not_kept(working: tuple[Service, str]) -> None:
    service, found = working
    reports = Reports(service.desk)
    with pytest.raises(ComparisonNotFound):
        reports.get("none", Language.ENGLISH)
    reports.get(found, Language.ENGLISH)
    service.registry.delete(found, entry=ENTRY, stale_after_s=1.0)
    with pytest.raises((ComparisonNotFound, InvalidValue)):
        reports.get(found, Language.ENGLISH)
