"""How long a prompt an arm answers rightly, and how much fits into its KV cache. Pure functions of observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qualab.model.engine import Drafting, Engine, Observation, Probe, engines_seen
from qualab.model.names import ArmName, Language, Outcome
from qualab.model.reason import Reason
from qualab.model.speed import ArmLimits, Capacity, LengthTried, Limits, Room

SHORTEST, LONGEST = 512, 2**24
"""Lengths with which a ladder begins, and beyond which it does not grow where the engine tells no limit."""
CLOSE_TOKENS, CLOSE_SHARE = 64, 0.02
"""A right and a failing length this close are the edge."""
ABOVE = 8
"""Tokens beyond the advertised limit of a prompt that has to be refused."""
MOST_DEATHS, MOST_TRIES = 2, 2
MISCOUNT = 0.01
ROOM_LENGTHS = (1_024, 8_192, 32_768, 131_072)
LONG = 32_768
ANSWERED = (Outcome.RIGHT, Outcome.WRONG)
Ladder = Mapping[int, Outcome | None]
"""Outcome by length; None where the length lacks a prompt."""


def capacity_of(observations: Sequence[Observation]) -> Capacity | None:
    """Compare the arms' KV caches; None where an engine does not tell its own."""
    engines = engines_seen(observations)
    tokens = [engine.kv_cache_tokens for arm in ArmName if (engine := engines.get(arm))]
    limits = [engine.max_model_len for engine in engines.values() if engine.max_model_len]
    if len(tokens) < len(ArmName) or not tokens[0] or not tokens[1]:
        return None
    baseline, candidate = tokens[0], tokens[1]
    lengths = [n for n in ROOM_LENGTHS if not limits or n < limits[0]] + limits[:1]
    rooms = tuple(Room(tokens=n, baseline=baseline / n, candidate=candidate / n) for n in lengths)
    return Capacity(baseline_tokens=baseline, candidate_tokens=candidate, rooms=rooms)


def next_probe(
    probes: Sequence[Probe], advertised: int | None, *, output_tokens: int, start: int = SHORTEST
) -> tuple[int, Language] | None:
    """Choose length and language of an arm's next prompt from its probes so far; None at the ladder's end.

    Lengths double up to the advertised limit, then the edge between right and failing is bisected. A prompt that fails
    is tried once more with other content, unless the server died of it.
    """
    n_deaths = sum(probe.died for probe in probes)
    if n_deaths >= MOST_DEATHS:
        return None
    ladder = _ladder(probes)
    for tokens, outcome in ladder.items():
        if outcome is None:
            return tokens, next(language for language in Language if _settled(probes, tokens, language) is None)
    top = max(1, advertised - output_tokens) if advertised else None
    right, failing = _edge({tokens: outcome for tokens, outcome in ladder.items() if top is None or tokens <= top})
    if failing is None and right < (top or LONGEST):
        return min(2 * right or start, top or LONGEST), Language.ENGLISH
    if failing and right and failing - right > max(CLOSE_TOKENS, CLOSE_SHARE * failing):
        return (right + failing) // 2, Language.ENGLISH
    if advertised and right and not n_deaths and max(ladder) <= advertised:
        return advertised + ABOVE, Language.ENGLISH
    return None


def _settled(probes: Sequence[Probe], tokens: int, language: Language) -> Outcome | None:
    tries = [probe for probe in probes if probe.prompt_tokens == tokens and probe.language == language]
    outcomes = [probe.outcome for probe in tries]
    if Outcome.RIGHT in outcomes:
        return Outcome.RIGHT
    is_known = len(tries) >= MOST_TRIES or Outcome.REFUSED in outcomes or any(probe.died for probe in tries)
    return outcomes[-1] if is_known else None


def _ladder(probes: Sequence[Probe]) -> Ladder:
    """Map lengths in rising order to the first outcome over languages that is not right."""
    ladder = {}
    for tokens in sorted({probe.prompt_tokens for probe in probes}):
        outcomes = (_settled(probes, tokens, language) for language in Language)
        ladder[tokens] = next((outcome for outcome in outcomes if outcome is not Outcome.RIGHT), Outcome.RIGHT)
    return ladder


def _edge(ladder: Ladder) -> tuple[int, int | None]:
    """Return the longest right length (0 for none) below the shortest that is not, and that one."""
    failing = min((tokens for tokens, outcome in ladder.items() if outcome not in (None, Outcome.RIGHT)), default=None)
    right = (n for n, outcome in ladder.items() if outcome is Outcome.RIGHT and (failing is None or n < failing))
    return max(right, default=0), failing


def _fails_from(ladder: Ladder, most: int | None = None) -> int | None:
    failing = (tokens for tokens, outcome in ladder.items() if outcome in (Outcome.WRONG, Outcome.BROKEN))
    return next((tokens for tokens in failing if most is None or tokens <= most), None)


def needles_expected(probes: Sequence[Probe], language: Language) -> int | None:
    """Return the most needles that any arm found in its shortest prompt; None where none was answered yet."""
    answered = [own for own in probes if own.language == language and own.outcome in ANSWERED]
    shortest = min((own.prompt_tokens for own in answered), default=None)
    return max((own.n_right for own in answered if own.prompt_tokens == shortest), default=None)


def is_garbled(text: str) -> bool:
    """Tell whether a text holds nothing recognisable: no letters to speak of, or the same word again and again."""
    words, visible = text.split(), "".join(text.split())
    is_readable = sum(letter.isalnum() for letter in visible) * 2 > len(visible)
    return not is_readable or visible.count("\ufffd") * 5 > len(visible) or (len(words) >= 8 and len({*words}) <= 2)


def outcome_of(text: str, n_right: int, *, expected: int | None, is_cut: bool) -> Outcome:
    """Judge an answer: at least half of the needles that the shortest prompt gave, or, where it gave none, any text.

    `is_cut`: the server counted far fewer tokens than it was sent, so that one needle too few is too much.
    """
    if expected:
        is_right = n_right >= expected if is_cut else 2 * n_right >= expected
    else:
        is_right = n_right > 0 or not is_garbled(text)
    return Outcome.RIGHT if is_right else Outcome.WRONG


def limits_of(observations: Sequence[Observation]) -> Limits | None:
    """Sum up the probes of both arms; None without any."""
    probes = [own for own in observations if isinstance(own, Probe)]
    engines, arms = engines_seen(observations), {probe.arm for probe in probes}
    return Limits(arms=tuple(_arm_limits(arm, probes, engines.get(arm)) for arm in sorted(arms))) if arms else None


def _arm_limits(arm: ArmName, probes: Sequence[Probe], engine: Engine | None) -> ArmLimits:
    own = [probe for probe in probes if probe.arm is arm]
    advertised = engine.max_model_len if engine else None
    ladder = _ladder(own)
    verified = _edge(ladder)[0] or None
    set_to = None
    if verified and _fails_from(ladder, advertised):
        limit = verified + own[-1].output_tokens
        step = 1_024 if limit > LONG else 256
        set_to = limit // step * step or None
    return ArmLimits(
        arm=arm,
        advertised=advertised,
        verified=verified,
        refused_from=next((tokens for tokens, outcome in ladder.items() if outcome is Outcome.REFUSED), None),
        fails_from=_fails_from(ladder),
        n_deaths=sum(probe.died for probe in own),
        set_to=set_to,
        is_content_checked=any(needles_expected(probes, language) for language in Language),
        lengths=tuple(_tried(own, tokens, outcome) for tokens, outcome in ladder.items() if outcome),
        notes=tuple(_notes(own, probes, ladder, advertised)),
    )


def _tried(probes: Sequence[Probe], tokens: int, outcome: Outcome) -> LengthTried:
    tries = [probe for probe in probes if probe.prompt_tokens == tokens]
    drafting = sum((probe.drafting for probe in tries if probe.drafting), Drafting())
    return LengthTried(
        prompt_tokens=tokens,
        outcome=outcome,
        acceptance_length=1.0 + drafting.accepted_tokens / drafting.drafts if drafting.drafts else None,
        latency_s=max(probe.latency_s for probe in tries),
    )


def _notes(own: Sequence[Probe], probes: Sequence[Probe], ladder: Ladder, advertised: int | None) -> Iterator[Reason]:
    expected = {language: needles_expected(probes, language) for language in Language}
    if any(expected.values()) and (unchecked := tuple(name for name, n in expected.items() if n == 0)):
        yield Reason("limits.unchecked", {"languages": unchecked})
    for tokens, outcome in ladder.items():
        if advertised is not None and tokens > advertised and outcome not in (None, Outcome.REFUSED):
            yield Reason("limits.not-refused", {"tokens": tokens, "outcome": outcome})
    refusals = [(probe.told_tokens, probe) for probe in own if probe.outcome is Outcome.REFUSED and probe.told_tokens]
    wrong = [(n, probe) for n, probe in refusals if abs(n - probe.prompt_tokens) > max(16, MISCOUNT * n)]
    if wrong:
        told, probe = wrong[0]
        yield Reason("limits.wrong-count", {"told": told, "tokens": probe.prompt_tokens})
    if any(probe.died and probe.recovered_s is None for probe in own):
        yield Reason("limits.stayed-dead")
    elif sum(probe.died for probe in own) >= MOST_DEATHS:
        yield Reason("limits.died-twice")
    failing = _fails_from(ladder, advertised)
    if own[0].arm is ArmName.CANDIDATE and failing:
        baseline = _ladder([probe for probe in probes if probe.arm is ArmName.BASELINE])
        also_failing = _fails_from(baseline, advertised)
        if also_failing and also_failing <= failing * (1.0 + CLOSE_SHARE):
            yield Reason("limits.baseline-too", {"tokens": also_failing})
        elif (longest := _edge(baseline)[0]) >= failing:
            yield Reason("limits.baseline-longer", {"tokens": longest})
