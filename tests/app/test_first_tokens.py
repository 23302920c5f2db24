"""Texts that differ are tokenized after a run: which, by whom, with what result, and what happens when that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from statistics import median
from typing import Any

import pytest

from qualab.analysis.flips import flips
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, QualabError
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import FirstTokensSeen, PairKind, TokenizedBy, TokensLack
from qualab.model.items import Reply
from qualab.model.names import ComparisonStatus
from qualab.model.plan import RequestPolicy
from qualab.model.ports import ComparisonFilter
from qualab.run import tokens as tokenizing
from tests.app.fakes import BASELINE, CANDIDATE, Answerer, FakeEndpoint, FakeHarness, failure, reply
from tests.app.scripted_pair import MadeUpTasks, notes, pair, troubles
from tests.app.test_noise_floor import ONE, NoiseBench
from tests.app.test_turns import Turns
from tests.scripted_engine import EngineScript
from tests.scripted_server import encode

Texts = Mapping[str, str | Reply]
NOTHING: Texts = {}
DARK = "The lighthouse is dark."
AT_DARK = len(encode("The lighthouse ")) - 1


def two_letters(text: str) -> list[int]:
    """Two letters a token, so that characters and tokens are not the same; capitals are those of small letters."""
    lower = text.lower()
    return [hash(lower[place : place + 2]) for place in range(0, len(lower), 2)]


@dataclass
class Tokenizer(FakeEndpoint):
    """The baseline as it is opened to tokenize; remembers which texts it was given."""

    given: list[Sequence[str]] = field(default_factory=list)
    fails_at: int | None = None
    """The call that fails, from 0."""
    error: BaseException = field(default_factory=lambda: EndpointUnreachable("/tokenize does not answer"))
    waits_s: float = 0.0

    async def tokenize(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        self.given.append(texts)
        await asyncio.sleep(self.waits_s)
        if self.fails_at is not None and len(self.given) > self.fails_at:
            raise self.error
        return [two_letters(text) for text in texts]


def says(texts: Texts) -> Answerer:
    """Answers from a table by prompt ("sums 3"), else with the prompt."""
    replies = {prompt: text if isinstance(text, Reply) else reply(text) for prompt, text in texts.items()}
    return lambda prompt, seed: replies.get(prompt, reply(prompt))


class Three(NoiseBench):
    """Both arms, the noise floor's run of the baseline, and its tokenizer: told apart by how they are opened."""

    def __init__(self, *, off: Texts = NOTHING, on: Texts = NOTHING, again: Texts = NOTHING, **tasks: Any) -> None:
        super().__init__(harness=FakeHarness(MadeUpTasks(**{"sizes": {"sums": 12}, **tasks})))
        self.baseline.answer, self.candidate.answer = says(off), says(on)
        self.noise.answer, self.tokenizer = says(again), Tokenizer("http://off")

    def endpoint(self, url: str, policy: RequestPolicy) -> FakeEndpoint:
        return self.tokenizer if policy.timeout_s == tokenizing.TIMEOUT_S else super().endpoint(url, policy)

    def ran(self, **changes: Any) -> Analysis:
        return asyncio.run(self.run(**changes))

    def resumed(self) -> Analysis:
        return asyncio.run(self.resume(self.comparison.id))

    @property
    def comparison(self) -> Comparison:
        (found,) = self.store.list(ComparisonFilter())
        return found

    @property
    def seen(self) -> list[FirstTokensSeen]:
        return [one for one in self.store.observations(self.comparison.id) if isinstance(one, FirstTokensSeen)]

    def places(self, kind: PairKind = PairKind.ARMS, task: str = "sums") -> dict[str, int | None]:
        """The first token that is another, by what was asked."""
        (found,) = [one for one in self.seen[-1].tasks if (one.task, one.pairs) == (task, kind)]
        items = list(self.store.items(self.comparison.id))
        return {items[position].prompts[0].text: token for position, _, token in found.places}


def differing(n: int, task: str = "sums") -> dict[str, str]:
    """Answers to the first `n` items that differ from `SAME` at token i for item i."""
    return {f"{task} {number}": "=" * 2 * number + "!" for number in range(n)}


SAME = {f"{task} {number}": "=" * 200 for task in ("sums", "words") for number in range(40)}
"""The baseline's answers."""


def test_the_first_token_that_is_another() -> None:
    texts = [("abcdef", "abcxef"), ("abcd", "abcdef"), ("", "abc"), ("abcdef", ""), ("ABCD", "abcd")]
    texts.append(("x" * 400 + "ab", "x" * 400 + "cd"))
    off, on = ({f"sums {number}": pair[arm] for number, pair in enumerate(texts)} for arm in (0, 1))
    bench = Three(off=off, on=on)
    found = bench.ran().tokens.candidate
    assert [bench.places()[name] for name in off] == [1, 2, 0, 0, None, 200]
    assert (found.n_differ, found.n_tokenized, found.n_same_tokens, found.first_difference) == (6, 6, 1, 1)


def test_medians_by_task_and_over_all_are_those_of_a_count_by_hand() -> None:
    sizes = {"sums": 40, "words": 25, "quiet": 5}
    rng, names = random.Random(7), [f"{task} {n}" for task in ("sums", "words") for n in range(sizes[task])]
    first, *others = (
        {name: "".join(rng.choice("ab") for _ in range(rng.randrange(9))) for name in names} for _ in range(3)
    )
    bench = Three(off=first, on=others[0], again=others[1], sizes=sizes)
    found = bench.ran(noise_floor=ONE).tokens
    assert [one.task for one in found.tasks] == ["sums", "words", "quiet"]
    for texts, of_all, by_task in (
        (others[0], found.candidate, [one.candidate for one in found.tasks]),
        (others[1], found.baseline, [one.baseline for one in found.tasks]),
    ):
        same = {name: [*map(eq, two_letters(first[name]), two_letters(texts[name])), False] for name in names}
        places = {name: tokens.index(False) for name, tokens in same.items() if first[name] != texts[name]}
        assert of_all.first_difference == median(places.values())
        for one, task in zip(by_task, ("sums", "words"), strict=False):
            own = [place for name, place in places.items() if name.startswith(task)]
            assert (one.n_differ, one.n_tokenized, one.first_difference) == (len(own), len(own), median(own))
        assert (by_task[2].n_differ, by_task[2].first_difference) == (0, None)


def test_answers_that_all_three_have_are_compared_and_nothing_is_asked_where_none_differs() -> None:
    bench, same = Three(on=differing(4), again={"sums 7": "another", "sums 2": failure()}), Three()
    found = bench.ran(noise_floor=ONE).tokens
    assert set(bench.places()) == {"sums 0", "sums 1", "sums 3"}
    assert set(bench.places(PairKind.NOISE)) == {"sums 7"}
    assert (found.candidate.n_differ, found.baseline.n_differ) == (3, 1)
    found = same.ran(noise_floor=ONE).tokens
    assert (found.lack, found.candidate.n_differ, found.baseline.n_differ) == (None, 0, 0)
    assert same.tokenizer.given == []


def test_log_likelihoods_have_no_texts() -> None:
    for sizes, expected in (({"sums": 4, "picks": 4}, [("sums", 4)]), ({"picks": 4}, None)):
        bench = Three(sizes=sizes, scored=("picks",))
        bench.baseline.answer = lambda prompt, seed: reply("off", loglikelihood=-1.0)
        bench.candidate.answer = lambda prompt, seed: reply("on", loglikelihood=-1.0)
        found = bench.ran(tokenizer="x").tokens
        assert (found and [(one.task, one.candidate.n_differ) for one in found.tasks]) == expected


def test_a_task_with_too_many_pairs_has_a_random_part_tokenized_the_same_in_both_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizing, "MOST_PAIRS", 5)
    sizes = {"sums": 40, "words": 3}
    texts = differing(40) | differing(3, "words")
    bench = Three(off=SAME, on=texts, again=texts, sizes=sizes)
    found = bench.ran(noise_floor=ONE).tokens
    drawn = bench.places()
    assert len(drawn) == 5
    assert set(drawn) != {f"sums {number}" for number in range(5)}
    assert bench.places(PairKind.NOISE) == drawn
    assert set(bench.places(task="words")) == set(differing(3, "words"))
    assert (found.candidate.n_differ, found.candidate.n_tokenized) == (43, 8)
    # each of the five stands for eight
    everyone = [number for number in drawn.values() if number is not None] * 8 + list(range(3))
    assert found.candidate.first_difference == median(everyone)
    assert found.candidate.first_difference != median([*drawn.values(), 0, 1, 2])
    other = Three(on=texts, sizes=sizes)
    other.ran(seed=99)
    assert other.places() != drawn


def test_an_engine_is_asked_little_at_once_and_once_and_not_at_all_where_a_tokenizer_is_named() -> None:
    for planned, expected in ((3, 3), (64, 8)):
        bench = Three(on=differing(4))
        bench.ran(policy=RequestPolicy(concurrency=planned, max_attempts=5))
        policy = bench.opened[-1]
        assert (policy.concurrency, policy.max_attempts, policy.timeout_s) == (expected, 1, 10.0)
    bench = Three(on={"sums 0": "sums 9"})
    assert bench.ran(tokenizer="x").tokens.by is TokenizedBy.NAMED
    assert bench.tokenizer.given == []
    assert bench.places() == {"sums 0": 5}, "a token a byte"


def test_arm_by_arm_the_candidates_engine_tokenizes() -> None:
    with pair(on_says=DARK) as both:
        turns = Turns(both)
        turns.take(BASELINE, noise_floor=ONE)
        assert [text for text, _ in turns.servers[0].tokenized if "lighthouse" in text] == []
        found = turns.take(CANDIDATE).tokens
        turns.stop()
    assert found.by is TokenizedBy.CANDIDATE
    assert (found.candidate.n_differ, found.candidate.first_difference) == (40, AT_DARK)
    assert found.baseline.n_differ == 0


@pytest.mark.parametrize("kind", ["vllm", "llama"])
def test_nothing_is_tokenized_while_counters_are_read_and_nothing_is_seen_of_it(kind: str) -> None:
    script = EngineScript(kind=kind, step_s=0.01)
    with pair(off=script, on=script, on_says=DARK) as both:
        found = both.compared()
        after = [n for text, n in both.off.tokenized if "lighthouse" in text]
        assert after == [both.off.n_metrics_read] * 2, "the two texts that forty pairs have"
        assert not any("lighthouse" in text for text, _ in both.on.tokenized)
        again = both.resumed()
    assert again == found
    assert found.tokens.candidate.first_difference == AT_DARK
    assert troubles(found) == ()
    assert not any("not from this run" in note for note in notes(found))


@pytest.mark.parametrize("error", [EndpointUnreachable("gone"), EndpointMisconfigured("no /tokenize")])
def test_a_tokenizer_that_fails_leaves_the_run_its_verdict(error: QualabError) -> None:
    healthy, bench = Three(on=differing(4)).ran(), Three(on=differing(4))
    bench.tokenizer.fails_at, bench.tokenizer.error = 0, error
    found = bench.ran()
    candidate = found.tokens.candidate
    assert found.tokens.lack is TokensLack.FAILED
    assert (candidate.n_differ, candidate.n_tokenized, candidate.first_difference) == (4, 0, None)
    assert (found.verdict, found.metrics) == (healthy.verdict, healthy.metrics)
    assert bench.comparison.status is ComparisonStatus.FINISHED
    assert len(bench.tokenizer.given) == 1


def test_what_was_known_before_it_failed_is_kept_and_the_rest_is_asked_when_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizing, "CHUNK", 3)
    bench = Three(off=SAME, on=SAME | differing(10))
    bench.tokenizer.fails_at = 2
    found = bench.ran().tokens
    assert (found.candidate.n_differ, found.candidate.n_tokenized, found.lack) == (10, 6, TokensLack.FAILED)
    before = bench.places()
    bench.tokenizer.fails_at, bench.tokenizer.given = None, []
    found = bench.resumed().tokens
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
    bench = Three(on=differing(10))
    bench.tokenizer.waits_s = 0.1
    found = bench.ran().tokens
    assert found.lack is TokensLack.TIME
    assert found.candidate.n_tokenized in (3, 6, 9)


@pytest.mark.parametrize(("fault", "lack"), [("untokenized", TokensLack.FAILED), ("slowly_tokenized", TokensLack.TIME)])
def test_a_server_that_breaks_or_hangs_over_a_text_holds_nothing_up(
    fault: str, lack: TokensLack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizing, "LIMIT_S", 0.5)
    with pair(off=EngineScript(**{fault: "lighthouse"}), on_says=DARK) as both:
        found = both.compared().tokens
    assert (found.lack, found.candidate.n_tokenized) == (lack, 0)


def test_an_interruption_while_it_tokenizes_can_be_resumed() -> None:
    bench = Three(on=differing(4))
    bench.tokenizer.fails_at, bench.tokenizer.error = 0, asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        bench.ran()
    assert bench.comparison.status is ComparisonStatus.INTERRUPTED
    bench.tokenizer.fails_at = None
    assert bench.resumed().tokens.candidate.n_tokenized == 4


def test_a_flip_says_at_which_token_it_begins_to_differ() -> None:
    bench = Three(on={"sums 3": "sums 4"})
    bench.harness.tasks.score = lambda task, answered: [
        {"exact_match,none": float(replies[0].text == item.prompts[0].text)} for item, replies in answered
    ]
    bench.ran()
    (flip,) = flips(bench.store, bench.comparison.id).shown
    assert (flip.first_difference, flip.first_token) == (5, 2)
    bench.store.observations = lambda _: ()
    (flip,) = flips(bench.store, bench.comparison.id).shown
    assert (flip.first_difference, flip.first_token) == (5, None)
