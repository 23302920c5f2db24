"""Where to turn the drafter on: routes, flags and what they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qualab.analysis.advice import advice_of
from qualab.model.audit import Audit
from qualab.model.comparison import Analysis, MetricResult
from qualab.model.engine import EngineKind, LengthBin, TaskDrafting, Treatment
from qualab.model.names import AuditRuling, Turn, Verdict, Work
from qualab.model.reason import Reason
from qualab.model.report import Report
from qualab.model.speed import Advice, CellSpeed, Limits, Payoff
from qualab.report.model import model_of
from qualab.report.source import Source
from qualab.report.speed import advice_blocks, gain_line
from qualab.report.words import ENGLISH
from tests.app.payoffs import CAPACITY, cell, limits, speed
from tests.app.report_texts import english_in, texts
from tests.render.samples import sample
from tests.said import KOREAN
from tests.store.samples import filled

COPY, PROSE = Work.COPY, Work.PROSE
REASON = Reason("unpaired")
ON, OFF, OPEN = Turn.ON, Turn.OFF, Turn.NOT_PROVEN
REST = (None, None, None, OPEN)
LIMITED = (None, 245_760, None, OPEN), (None, None, None, OFF)


def analysis(verdict: Verdict = Verdict.EQUIVALENT, **values: Any) -> Analysis:
    rows = {"gsm8k": Verdict.EQUIVALENT} | values.pop("tasks", {})
    metrics = [
        filled(MetricResult, reason=REASON, id=f"{task}/em", task=task, verdict=own) for task, own in rows.items()
    ]
    return replace(sample()[1], verdict=verdict, metrics=tuple(metrics), **{"audit": None, "treatment": None} | values)


def advise(
    *cells: CellSpeed, of: Analysis | None = None, within: Limits | None = None, kind: EngineKind = EngineKind.VLLM
) -> Advice:
    own = speed(*cells) if cells else None
    advice = advice_of(of or analysis(), own, CAPACITY, within, kind=kind)
    assert advice is not None
    return advice


def routes(advice: Advice) -> list[tuple[Work | None, int | None, int | None, Turn]]:
    return [(own.work, own.max_prompt_tokens, own.max_concurrency, own.turn) for own in advice.routes]


FASTER = (
    cell(COPY, 2.2),
    cell(COPY, 1.8, at_once=8),
    cell(COPY, 1.5, tokens=4_096),
    cell(COPY, 1.4, tokens=4_096, at_once=8),
)
BY_LOAD = (cell(PROSE, 1.5), cell(PROSE, 1.02, at_once=4, is_open=True), cell(PROSE, 0.8, at_once=8))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (FASTER, [(COPY, 4_096, 8, ON), REST]),
        (BY_LOAD, [(PROSE, 256, 1, ON), (PROSE, 256, 4, OPEN), (PROSE, 256, 8, OFF), REST]),
        (BY_LOAD[::-1] + FASTER[:1],
         [(COPY, 256, 1, ON), (PROSE, 256, 1, ON), (PROSE, 256, 4, OPEN), (PROSE, 256, 8, OFF), REST]),
        ((cell(COPY, 2.0), cell(COPY, 0.7, tokens=8_192)), [(COPY, 256, 1, ON), (COPY, 8_192, 1, OFF), REST]),
        ((cell(Work.OWN, 2.0, tokens=0),), [(Work.OWN, None, 1, ON), REST]),
        ((cell(COPY, None),), [(COPY, 256, 1, OPEN), REST]),
        ((cell(COPY, 2.0, at_once=None),), [(COPY, 256, None, ON), REST]),
        ((cell(COPY, 0.5, at_once=None), cell(COPY, 2.0)), [(COPY, 256, 1, ON), REST]),
    ],
)  # fmt: skip
def test_routes_go_by_work_length_and_load_and_neighbours_with_one_turn_are_one(
    cells: tuple[CellSpeed, ...], expected: list[Any]
) -> None:
    assert routes(advise(*cells)) == expected


FOREIGN = filled(Audit, ruling=AuditRuling.FOREIGN, reason=REASON)
LONG_LOST = {"long_2k": Verdict.EQUIVALENT, "long_8k_ko": Verdict.REGRESSION, "long_32k": Verdict.REGRESSION}


@pytest.mark.parametrize(
    ("of", "within", "expected"),
    [
        (analysis(Verdict.INCONCLUSIVE), None, [(COPY, 4_096, 8, ON), REST]),
        (analysis(Verdict.INVALID), None, [(COPY, 4_096, 8, OPEN), REST]),
        (analysis(Verdict.REGRESSION), None, [(None, None, None, OFF)]),
        (analysis(Verdict.REGRESSION, tasks={"ifeval": Verdict.REGRESSION}), None, [(None, None, None, OFF)]),
        (analysis(Verdict.REGRESSION, tasks=LONG_LOST), None,
         [(COPY, 256, 8, ON), (None, 2_000, None, OPEN), (None, None, None, OFF)]),
        (analysis(audit=FOREIGN), None, [(None, None, None, OFF)]),
        (analysis(), limits(), [(COPY, 4_096, 8, ON), *LIMITED]),
        (analysis(), limits(verified=1_000), [(COPY, 256, 8, ON), (None, 1_000, None, OPEN), (None, None, None, OFF)]),
        (analysis(), limits(verified=None), [(None, None, None, OFF)]),
        (analysis(), limits(fails_from=None), [(COPY, 4_096, 8, ON), REST]),
        (analysis(), limits(fails_from=None, refused_from=1_000_008), [(COPY, 4_096, 8, ON), REST]),
        (analysis(), limits(fails_from=None, refused_from=300_000), [(COPY, 4_096, 8, ON), *LIMITED]),
    ],
)  # fmt: skip
def test_harm_to_the_answers_turns_it_off_at_the_lengths_where_it_is(
    of: Analysis, within: Limits | None, expected: list[Any]
) -> None:
    assert routes(advise(*FASTER, of=of, within=within)) == expected


def codes(advice: Advice) -> set[str]:
    return {reason.code.removeprefix("advice.") for reason in advice.reasons}


TASKS = tuple(
    filled(TaskDrafting, task=name, break_even_margin=margin, round_cost=0.5)
    for name, margin in (("json", 1.0), ("stories", -0.4))
)
BINS = tuple(
    LengthBin(from_tokens=n, to_tokens=2 * n - 1, n_answers=20, draft_tokens=100, accepted_tokens=accepted)
    for n, accepted in ((128, 60), (1_024, 20))
)
TREATED = analysis(treatment=filled(Treatment, is_observed=True, tasks=TASKS, bins=BINS))


def test_flags_and_reasons_tell_what_to_set_and_what_is_not_known() -> None:
    slow = advise(cell(PROSE, 0.9), within=limits())
    assert (slow.flags, codes(slow)) == ((), {"quality", "room", "leave-out"})
    fast = advise(*FASTER, within=limits())
    assert (fast.flags, codes(fast)) == (("--max-model-len 246784",), {"quality", "room"})
    assert advise(*FASTER, within=limits(), kind=EngineKind.LLAMA_CPP).flags == ()
    assert codes(advise(*BY_LOAD)) == {"quality", "room", "no-limits", "schedule"}
    assert codes(advise(*BY_LOAD, kind=EngineKind.SGLANG)) == {"quality", "room", "no-limits"}
    untested = advise(*BY_LOAD, of=replace(TREATED, metrics=()))
    assert codes(untested) == {
        "no-quality",
        "break-even",
        "pays",
        "costs",
        "by-length",
        "room",
        "no-limits",
        "schedule",
    }
    assert codes(advise(within=limits())) == {"quality", "no-speed", "room", "leave-out"}
    assert advice_of(analysis(), None, CAPACITY, None, kind=EngineKind.VLLM) is None


def test_the_evidence_is_the_ratio_that_is_closest_to_1() -> None:
    said = [ENGLISH.reasons(route.evidence) for route in advise(*FASTER, *BY_LOAD, of=TREATED).routes]
    assert said == [
        ("1.40 × (1.33 to 1.47), the closest to 1 of 4 cells", "2.50 tokens per round"),
        ("1.50 × (1.42 to 1.58)", "2.50 tokens per round"),
        ("1.02 × (0.90 to 1.12)", "2.50 tokens per round"),
        ("0.80 × (0.76 to 0.84)", "2.50 tokens per round"),
        ("not timed",),
    ]


def reported(payoff: Payoff, words: Any, *, has_tasks: bool = True) -> Report:
    made, of = sample()
    comparison = made.store.get(made.comparison.id)
    if not has_tasks:
        plan = replace(comparison.plan, tasks=(), metrics=(), requested=())
        comparison, of = replace(comparison, plan=plan), replace(of, metrics=(), verdict=Verdict.INCONCLUSIVE)
    return model_of(Source(comparison=comparison, analysis=of, payoff=payoff), words)


def whole() -> Payoff:
    own, within = speed(*FASTER, *BY_LOAD, cell(Work.OWN, 3.1, at_once=None, tokens=0)), limits()
    advice = advice_of(TREATED, own, CAPACITY, within, kind=EngineKind.VLLM)
    return Payoff(speed=own, capacity=CAPACITY, limits=within, advice=advice)


NOTHING = Payoff(speed=None, capacity=None, limits=None, advice=None)
OF_TIMES = ["speed", "capacity", "limits", "advice"]


def test_the_report_shows_what_was_measured_in_both_languages_and_leaves_the_rest_out() -> None:
    for words in (ENGLISH, KOREAN):
        shown = reported(whole(), words)
        assert [section.id for section in shown.sections if section.id in OF_TIMES] == OF_TIMES
        assert not {"forest", "metrics"} & {own.id for own in reported(whole(), words, has_tasks=False).sections}
    assert english_in(reported(whole(), KOREAN)) == []
    assert [text for text in texts(reported(whole(), KOREAN)) if " %" in text] == []
    assert not {section.id for section in reported(NOTHING, ENGLISH).sections} & set(OF_TIMES)
    assert list(advice_blocks(NOTHING, ENGLISH)) == []
    assert "gain" not in {line.id for line in reported(NOTHING, ENGLISH).box}


@pytest.mark.parametrize(
    ("payoff", "english", "korean"),
    [
        (Payoff(speed=speed(cell(COPY, 2.2), cell(PROSE, 0.9)), capacity=CAPACITY, limits=None, advice=None),
         "2.2 × faster on copying (2.1 to 2.3), 0.90 × the speed on free prose (0.85 to 0.95); "
         "25 % less room in the KV cache",
         "베껴 쓰기 2.2배 빠름 (2.1 ~ 2.3), 산문 0.90배로 느려짐 (0.85 ~ 0.95); KV 캐시 공간 25% 감소"),
        (Payoff(speed=speed(cell(PROSE, 1.02, is_open=True)), capacity=None, limits=None, advice=None),
         "no proven change on free prose: 1.02 × (0.90 to 1.12)", "산문 속도 차이 입증 안 됨: 1.02배 (0.90 ~ 1.12)"),
    ],
)  # fmt: skip
def test_one_line_tells_gain_and_cost(payoff: Payoff, english: str, korean: str) -> None:
    assert (gain_line(payoff, ENGLISH), gain_line(payoff, KOREAN)) == (english, korean)
