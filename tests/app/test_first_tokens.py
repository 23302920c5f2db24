"""Texts that differ are tokenized after a run: which, by whom, with what result, and what happens when that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import Any

import pytest

from qualab.analysis.flips import flips
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, QualabError
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import FirstTokensSeen, FirstTokenSummary, PairKind, TokenizedBy, TokensLack
from qualab.model.names import ComparisonStatus
from qualab.model.plan import RequestPolicy
from qualab.model.ports import ComparisonFilter
from qualab.run import tokens as tokenizing
from tests.app.fakes import Bench, FakeEndpoint, FakeHarness, failure, reply
from tests.app.scripted_pair import MadeUpTasks, Talker, pair, treatment
from tests.app.test_noise_floor import ONE, WithChoices
from tests.app.test_turns import Turns
from tests.said import english
from tests.scripted_engine import EngineScript
from tests.scripted_server import encode

ARMS, NOISE = PairKind.ARMS, PairKind.NOISE
Place = tuple[int, int, int | None]
GONE = EndpointUnreachable("/tokenize does not answer")


def two_letters(text: str) -> list[int]:
    """Two letters a token, so that characters and tokens are not the same; capitals are those of small letters."""
    lower = text.lower()
    return [hash(lower[place : place + 2]) for place in range(0, len(lower), 2)]


@dataclass
class Says(FakeEndpoint):
    """Answers from a table by prompt ("sums 3"), else with the prompt."""

    texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answer = lambda prompt, seed: reply(self.texts.get(prompt, prompt))


@dataclass
class Tokenizer(FakeEndpoint):
    """The baseline as it is opened to tokenize; remembers which texts it was given."""

    fails_at: int | None = None
    """The call that fails, from 0."""
    error: QualabError = GONE
    waits_s: float = 0.0
    given: list[Sequence[str]] = field(default_factory=list)

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        self.given.append(texts)
        await asyncio.sleep(self.waits_s)
        if self.fails_at is not None and len(self.given) > self.fails_at:
            raise self.error
        return [two_letters(text) for text in texts]


@dataclass
class Three(Bench):
    """Both arms, the noise floor's run of the baseline, and its tokenizer: told apart by how they are opened."""

    off: Says = field(default_factory=lambda: Says("http://off"))
    on: Says = field(default_factory=lambda: Says("http://on", drafts=True))
    again: Says = field(default_factory=lambda: Says("http://off"))
    tokenizer: Tokenizer = field(default_factory=lambda: Tokenizer("http://off"))
    sizes: dict[str, int] = field(default_factory=lambda: {"sums": 12})
    opened: list[RequestPolicy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.harness = FakeHarness(MadeUpTasks(sizes=self.sizes))

    @asynccontextmanager
    async def _open(self, url: str, *, policy: RequestPolicy, key: str | None) -> AsyncIterator[FakeEndpoint]:
        self.opened.append(policy)
        if policy.timeout_s == tokenizing.TIMEOUT_S:
            yield self.tokenizer
        elif policy.concurrency == ONE.concurrency:
            yield self.again
        else:
            yield self.off if url == self.off.url else self.on

    def ran(self, **changes: Any) -> Analysis:
        return asyncio.run(self.run(**changes))

    def resumed(self, **changes: Any) -> Analysis:
        return asyncio.run(self.resume(self.comparison.id, **changes))

    @property
    def comparison(self) -> Comparison:
        (found,) = self.store.list(ComparisonFilter())
        assert isinstance(found, Comparison)
        return found

    @property
    def seen(self) -> list[FirstTokensSeen]:
        found = self.store.observations(self.comparison.id)
        return [one for one in found if isinstance(one, FirstTokensSeen)]

    def places(self, kind: PairKind = ARMS, task: str = "sums") -> dict[str, int | None]:
        """The first token that is another, by what was asked."""
        (found,) = [one for one in self.seen[-1].tasks if (one.task, one.pairs) == (task, kind)]
        items = list(self.store.items(self.comparison.id))
        return {items[position].prompts[0].text: token for position, _, token in found.places}


def summary(analysis: Analysis) -> FirstTokenSummary:
    assert analysis.tokens is not None
    return analysis.tokens


def off_says(texts: dict[str, str]) -> Says:
    return Says("http://off", texts=texts)


def on_says(texts: dict[str, str]) -> Says:
    return Says("http://on", drafts=True, texts=texts)


def differing(n: int, task: str = "sums") -> dict[str, str]:
    """Answers to the first `n` items that differ from `SAME` at token i for item i."""
    return {f"{task} {number}": "=" * 2 * number + "!" for number in range(n)}


SAME = {f"{task} {number}": "=" * 200 for task in ("sums", "words") for number in range(40)}
"""The baseline's answers."""


# where texts begin to differ


@pytest.mark.parametrize(
    ("off", "on", "expected"),
    [
        ("abcdef", "abcxef", 1),
        ("abcd", "abcdef", 2),
        ("", "abc", 0),
        ("abcdef", "", 0),
        ("x" * 400 + "ab", "x" * 400 + "cd", 200),
        ("ABCD", "abcd", None),
    ],
    ids=["inside", "one begins with the other", "nothing", "nothing in the candidate", "late", "the same tokens"],
)
def test_the_first_token_that_is_another(off: str, on: str, expected: int | None) -> None:
    bench = Three(off=Says("http://off", texts={"sums 3": off}), on=on_says({"sums 3": on}))
    found = summary(bench.ran()).candidate
    assert bench.places() == {"sums 3": expected}
    assert (found.n_differ, found.n_tokenized, found.n_same_tokens) == (1, 1, expected is None)
    assert found.first_difference == expected


def test_medians_by_task_and_over_all_are_those_of_a_count_by_hand() -> None:
    sizes = {"sums": 40, "words": 25, "quiet": 5}
    rng, names = random.Random(7), [f"{task} {n}" for task in ("sums", "words") for n in range(sizes[task])]
    first, *others = (
        {name: "".join(rng.choice("ab") for _ in range(rng.randrange(9))) for name in names} for _ in range(3)
    )
    bench = Three(off=off_says(first), on=on_says(others[0]), again=off_says(others[1]), sizes=sizes)
    found = summary(bench.ran(noise_floor=ONE))
    assert [one.task for one in found.tasks] == ["sums", "words", "quiet"]
    for texts, of_all, by_task in (
        (others[0], found.candidate, [one.candidate for one in found.tasks]),
        (others[1], found.baseline, [one.baseline for one in found.tasks]),
    ):
        places = {name: by_hand(first[name], texts[name]) for name in names if first[name] != texts[name]}
        assert of_all.first_difference == median(places.values())
        for one, task in zip(by_task, ("sums", "words"), strict=False):
            own = [place for name, place in places.items() if name.startswith(task)]
            assert (one.n_differ, one.n_tokenized, one.first_difference) == (len(own), len(own), median(own))
        assert (by_task[2].n_differ, by_task[2].first_difference) == (0, None)


def by_hand(one: str, other: str) -> int:
    """Tokens of two letters that both begin with."""
    pairs = ([text[place : place + 2] for place in range(0, len(text), 2)] for text in (one, other))
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pairs, strict=False)))


def test_with_a_noise_floor_only_answers_that_all_three_have_are_compared() -> None:
    bench = Three(on=on_says(differing(4)))
    bench.again.texts = {"sums 7": "another"}
    bench.again.answer = lambda prompt, seed: (
        failure() if prompt == "sums 2" else reply(bench.again.texts.get(prompt, prompt))
    )
    found = summary(bench.ran(noise_floor=ONE))
    assert set(bench.places()) == {"sums 0", "sums 1", "sums 3"}
    assert set(bench.places(NOISE)) == {"sums 7"}
    assert (found.candidate.n_differ, found.baseline.n_differ) == (3, 1)


def test_where_no_text_differs_nothing_is_asked_and_that_is_known() -> None:
    bench = Three()
    found = summary(bench.ran(noise_floor=ONE))
    assert bench.tokenizer.given == []
    assert found.lack is None
    assert [one.n_differ for one in (found.candidate, found.baseline) if one] == [0, 0]


def test_log_likelihoods_have_no_texts() -> None:
    bench = Three()
    bench.harness = FakeHarness(WithChoices(n_items=4))
    bench.off.answer = lambda prompt, seed: reply("off", loglikelihood=-1.0)
    bench.on.answer = lambda prompt, seed: reply("on", loglikelihood=-1.0)
    assert [(one.task, one.candidate.n_differ) for one in summary(bench.ran(tokenizer="x")).tasks] == [("sums", 4)]
    bench = Three()
    bench.harness = FakeHarness(MadeUpTasks(sizes={"picks": 4}, scored=("picks",)))
    bench.off.answer = bench.on.answer = lambda prompt, seed: reply("", loglikelihood=-1.0)
    assert bench.ran(tokenizer="x").tokens is None


# which are tokenized, how, and by whom


def test_a_task_with_too_many_pairs_has_a_random_part_tokenized_the_same_in_both_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizing, "MOST_PAIRS", 5)
    sizes = {"sums": 40, "words": 3}
    texts = differing(40) | differing(3, "words")
    bench = Three(off=off_says(SAME), on=on_says(texts), again=off_says(texts), sizes=sizes)
    found = summary(bench.ran(noise_floor=ONE))
    drawn = bench.places()
    assert len(drawn) == 5
    assert set(drawn) != {f"sums {number}" for number in range(5)}
    assert bench.places(NOISE) == drawn
    assert set(bench.places(task="words")) == set(differing(3, "words"))
    assert (found.candidate.n_differ, found.candidate.n_tokenized) == (43, 8)
    # each of the five stands for eight
    everyone = [number for number in drawn.values() if number is not None] * 8 + list(range(3))
    assert found.candidate.first_difference == median(everyone)
    assert found.candidate.first_difference != median([*drawn.values(), 0, 1, 2])
    other = Three(on=on_says(texts), sizes=sizes)
    other.ran(seed=99)
    assert other.places() != drawn


@pytest.mark.parametrize(("planned", "expected"), [(3, 3), (64, 8)])
def test_requests_are_few_at_once_and_each_is_sent_once(planned: int, expected: int) -> None:
    bench = Three(on=on_says(differing(4)))
    bench.ran(policy=RequestPolicy(concurrency=planned, max_attempts=5))
    *_, policy = bench.opened
    assert (policy.concurrency, policy.max_attempts, policy.timeout_s) == (expected, 1, 10.0)


def test_the_tokenizer_that_is_named_is_used() -> None:
    bench = Three(on=on_says({"sums 0": "sums 9"}))
    found = summary(bench.ran(tokenizer="x"))
    assert found.by is TokenizedBy.NAMED
    assert bench.tokenizer.given == []
    assert bench.places() == {"sums 0": 5}, "a token a byte"


def test_arm_by_arm_the_candidates_engine_tokenizes() -> None:
    with pair() as both:
        both.on.script = Talker(engine=both.on.script.engine, drafts=True, says="The lighthouse is dark.")
        turns = Turns(both)
        turns.begun(noise_floor=ONE)
        assert [text for text, _ in turns.servers[0].tokenized if "lighthouse" in text] == []
        found = summary(turns.ended())
        turns.stop()
    assert found.by is TokenizedBy.CANDIDATE
    assert (found.candidate.n_differ, found.candidate.first_difference) == (40, len(encode("The lighthouse ")) - 1)
    assert found.baseline.n_differ == 0


# what it does not disturb


@pytest.mark.parametrize("kind", ["vllm", "llama"])
def test_nothing_is_tokenized_while_counters_are_read_and_nothing_is_seen_of_it(kind: str) -> None:
    script = EngineScript(kind=kind, step_s=0.01)
    with pair(off=script, on=script) as both:
        both.on.script = Talker(engine=script, drafts=True, says="The lighthouse is dark.")
        found = both.compared()
        after = [n for text, n in both.off.tokenized if "lighthouse" in text]
        assert after == [both.off.n_metrics_read] * 2, "the two texts that forty pairs have"
        assert not any("lighthouse" in text for text, _ in both.on.tokenized)
        again = both.resumed()
    assert again == found
    assert summary(found).candidate.first_difference == len(encode("The lighthouse ")) - 1
    assert english(treatment(found).troubles) == ()
    assert not any("not from this run" in note for note in english(treatment(found).notes))


# when it fails


@pytest.mark.parametrize("error", [GONE, EndpointMisconfigured("no /tokenize")])
def test_a_tokenizer_that_fails_leaves_the_run_its_verdict(error: QualabError) -> None:
    texts = differing(4)
    healthy = Three(on=on_says(texts)).ran()
    bench = Three(on=on_says(texts))
    bench.tokenizer.fails_at, bench.tokenizer.error = 0, error
    found = bench.ran()
    assert summary(found).lack is TokensLack.FAILED
    assert (summary(found).candidate.n_differ, summary(found).candidate.n_tokenized) == (4, 0)
    assert summary(found).candidate.first_difference is None
    assert (found.verdict, found.metrics) == (healthy.verdict, healthy.metrics)
    assert bench.comparison.status is ComparisonStatus.FINISHED
    assert len(bench.tokenizer.given) == 1


def test_what_was_known_before_it_failed_is_kept_and_the_rest_is_asked_when_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizing, "CHUNK", 3)
    bench = Three(off=off_says(SAME), on=on_says(SAME | differing(10)))
    bench.tokenizer.fails_at = 2
    found = summary(bench.ran())
    assert (found.candidate.n_differ, found.candidate.n_tokenized, found.lack) == (10, 6, TokensLack.FAILED)
    before = bench.places()
    bench.tokenizer.fails_at, bench.tokenizer.given = None, []
    found = summary(bench.resumed())
    assert (found.candidate.n_tokenized, found.lack) == (10, None)
    given = {text for texts in bench.tokenizer.given for text in texts}
    assert len(given) == 5, "four of the candidate, one of the baseline"
    assert {name: bench.places()[name] for name in before} == before
    assert bench.places() == {f"sums {number}": number for number in range(10)}
    n_given = len(bench.tokenizer.given)
    assert bench.resumed().tokens == found
    assert (len(bench.seen), len(bench.tokenizer.given)) == (2, n_given), "what is known is not asked again"


def test_time_that_runs_out_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "LIMIT_S", 0.25)
    monkeypatch.setattr(tokenizing, "CHUNK", 3)
    bench = Three(on=on_says(differing(10)))
    bench.tokenizer.waits_s = 0.1
    found = summary(bench.ran())
    assert found.lack is TokensLack.TIME
    assert 0 < found.candidate.n_tokenized < 10
    assert found.candidate.n_tokenized % 3 == 0


@pytest.mark.parametrize(
    ("engine", "lack"),
    [
        (EngineScript(untokenized="lighthouse"), TokensLack.FAILED),
        (EngineScript(slowly_tokenized="lighthouse"), TokensLack.TIME),
    ],
)
def test_a_server_that_breaks_or_hangs_over_a_text_holds_nothing_up(
    engine: EngineScript, lack: TokensLack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizing, "LIMIT_S", 0.5)
    with pair(off=engine) as both:
        both.on.script = Talker(engine=both.on.script.engine, drafts=True, says="The lighthouse is dark.")
        found = summary(both.compared())
    assert (found.lack, found.candidate.n_tokenized) == (lack, 0)


def test_an_interruption_while_it_tokenizes_can_be_resumed() -> None:
    bench = Three(on=on_says(differing(4)))
    bench.tokenizer.waits_s = 30

    async def killed() -> None:
        job = asyncio.create_task(bench.run())
        while not bench.tokenizer.given:
            await asyncio.sleep(0.01)
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job

    asyncio.run(killed())
    assert bench.comparison.status is ComparisonStatus.INTERRUPTED
    bench.tokenizer.waits_s = 0
    assert summary(bench.resumed()).candidate.n_tokenized == 4


# what else reads it


def test_a_flip_says_at_which_token_it_begins_to_differ() -> None:
    bench = Three(on=on_says({"sums 3": "sums 4"}))
    bench.harness.tasks.score = lambda task, answered: [
        {"exact_match,none": float(replies[0].text == item.prompts[0].text)} for item, replies in answered
    ]
    bench.ran()
    (flip,) = flips(bench.store, bench.comparison.id).shown
    assert (flip.first_difference, flip.first_token) == (5, 2)
    bench.store.observations = lambda _: ()
    (flip,) = flips(bench.store, bench.comparison.id).shown
    assert (flip.first_difference, flip.first_token) == (5, None)
