"""The ladder of lengths and the room in the KV cache, as functions of what was observed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from qualab.analysis.limits import capacity_of, is_garbled, limits_of, next_probe
from qualab.model.engine import Drafting, Engine, EngineKind, EngineSeen, Probe
from qualab.model.names import ArmName, Language, Outcome
from qualab.model.speed import ArmLimits
from qualab.run.limits import told_tokens
from tests.said import english

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RIGHT, WRONG, REFUSED, BROKEN = Outcome
Server = Callable[[int, Language, int], dict[str, Any]]
"""(tokens, language, how often this was asked before) -> what differs from a right answer."""


def seen(arm: ArmName, **values: Any) -> EngineSeen:
    return EngineSeen(arm=arm, seen_at=NOW, engine=Engine(kind=EngineKind.VLLM, **values))


def probe(tokens: int, language: Language = Language.ENGLISH, **values: Any) -> Probe:
    own = {"arm": ArmName.CANDIDATE, "seen_at": NOW, "output_tokens": 64, "told_tokens": None, "outcome": RIGHT}
    own |= {"n_right": 3, "n_needles": 3, "latency_s": 1.0, "drafting": Drafting(drafts=100, accepted_tokens=45)}
    return Probe(prompt_tokens=tokens, language=language, **own | values)


def climbed(server: Server, advertised: int | None, arm: ArmName = ArmName.CANDIDATE) -> list[Probe]:
    """Climb to the ladder's end, starting anew from what is stored before each step."""
    probes: list[Probe] = []
    while step := next_probe(probes, advertised, output_tokens=64):
        n_before = sum((own.prompt_tokens, own.language) == step for own in probes)
        probes.append(probe(*step, arm=arm, **server(*step, n_before)))
        assert len(probes) < 100
    return probes


def above(length: int, **values: Any) -> Server:
    return lambda tokens, _, __: values if tokens > length else {}


def refusing(server: Server, limit: int) -> Server:
    return lambda tokens, *own: {"outcome": REFUSED, "n_right": 0} if tokens > limit else server(tokens, *own)


def found(probes: list[Probe], advertised: int | None) -> ArmLimits:
    limits = limits_of([seen(probes[0].arm, max_model_len=advertised), *probes])
    assert limits
    (own,) = limits.arms
    return own


DIES = {"outcome": BROKEN, "n_right": 0, "died": True, "recovered_s": 10.0}
SAYS_NONSENSE = {"outcome": WRONG, "n_right": 0}


@pytest.mark.parametrize(
    ("server", "advertised", "expected"),
    [
        (refusing(above(10**9), 2_048), 2_048, (1_984, None, 2_056, None)),
        (above(3_000, **SAYS_NONSENSE), 131_072, (2_944, 3_008, None, 2_816)),
        (above(300_000, outcome=BROKEN, n_right=0), 1_000_000, (299_008, 303_104, None, 299_008)),
        (above(300_000, **DIES), 1_000_000, (262_144, 393_216, None, 262_144)),
        (refusing(above(10**9), 1_000), 8_192, (960, None, 1_024, None)),
        (above(1_000, **SAYS_NONSENSE), None, (960, 1_024, None, 1_024)),
        (above(0, outcome=BROKEN, n_right=0), 8_192, (None, 512, None, None)),
        (above(10**9), 4_096, (4_104, None, None, None)),
    ],
    ids=["healthy", "wrong", "500", "dies", "refuses early", "no limit told", "broken at once", "takes more"],
)  # fmt: skip
def test_a_ladder_ends_at_the_edge(server: Server, advertised: int | None, expected: tuple[int | None, ...]) -> None:
    """Expected are the verified length, those that fail and are refused first, and the limit to set."""
    limits = found(climbed(server, advertised), advertised)
    assert (limits.verified, limits.fails_from, limits.refused_from, limits.set_to) == expected
    assert limits.lengths[0].acceptance_length == pytest.approx(1.45)


def test_a_second_death_ends_a_ladder_and_one_slip_does_not_lower_it() -> None:
    died = found(climbed(above(1_500, **DIES), 8_192), 8_192)
    assert (died.n_deaths, english(died.notes)) == (2, ("the server died twice and was not asked any further",))
    slips = climbed(lambda tokens, _, n: SAYS_NONSENSE if tokens == 1_024 and not n else {}, 2_000)
    assert [own.outcome for own in slips if own.prompt_tokens == 1_024] == [WRONG, RIGHT] * 2
    assert found(slips, 2_000).fails_from is None


def test_notes_say_what_else_was_found() -> None:
    weak = climbed(lambda tokens, language, _: {"n_right": 0} if language is Language.KOREAN else {}, 4_096)
    miscounted = [*weak[:-1], probe(4_104, outcome=REFUSED, told_tokens=2_052)]
    assert english(found(weak, 4_096).notes) == (
        "no hidden fact is found in Korean, not even in the shortest prompt: there any readable answer counts as right",
        "a prompt of 4,104 tokens, just above the advertised limit, gets no 400 (right)",
    )
    assert english(found(miscounted, 4_096).notes)[1:] == ("a refusal counts 2,052 tokens in a prompt of 4,104",)
    candidate = climbed(above(2_000, **SAYS_NONSENSE), 8_192)
    for edge, said in ((10**9, "the baseline answers rightly up to 8,200 tokens"), (1_000, "the baseline fails from")):
        baseline = climbed(above(edge, **SAYS_NONSENSE), 8_192, ArmName.BASELINE)
        limits = limits_of([*(seen(arm, max_model_len=8_192) for arm in ArmName), *baseline, *candidate])
        assert limits
        assert any(note.startswith(said) for note in english(limits.arms[1].notes))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("This model's maximum context length is 1200 tokens, the prompt has 1024 tokens.", 1_024),
        ("The decoder prompt (length 2048) is longer than the maximum model length of 1200.", 2_048),
        ("The input (2,100 tokens) is longer than the model's context length (1200 tokens).", 2_100),
        ("request (2048 tokens) exceeds the available context size (1200 tokens)", 2_048),
        ("maximum context length is 1200 tokens", None),
    ],
)
def test_a_refusals_bound_is_not_taken_for_its_count(message: str, expected: int | None) -> None:
    told = told_tokens(f"HTTP 400: {message}", tokens=2_048, output_tokens=64, advertised=4_096)
    assert told == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The code is 12345.", False), ("등대의 암호는 12345이다.", False), ("", True), ("the " * 20, True),
     (" zq\ufffdxx ##" * 9, True), ("?!?! -- ..", True)],
)  # fmt: skip
def test_what_is_garbled(text: str, expected: bool) -> None:
    assert is_garbled(text) is expected


def test_the_published_room() -> None:
    tokens = {ArmName.BASELINE: 1_808_112, ArmName.CANDIDATE: 1_354_786}
    both = [seen(arm, max_model_len=1_000_000, kv_cache_tokens=own) for arm, own in tokens.items()]
    capacity = capacity_of(both)
    assert capacity
    assert round(capacity.change, 2) == -0.25
    room = capacity.rooms[-1]
    assert (room.tokens, round(room.baseline, 2), round(room.candidate, 2)) == (1_000_000, 1.81, 1.35)
    assert [own.tokens for own in capacity.rooms[:-1]] == [1_024, 8_192, 32_768, 131_072]
    assert capacity_of(both[:1]) is capacity_of([*both, seen(ArmName.CANDIDATE)]) is None
