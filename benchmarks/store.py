"""What the store costs: bytes an answer and rows a second, aims 800 bytes and 20,000 answers a second in bulk.

    QUALAB_SHARED=DIR python benchmarks/store.py [--rounds N]

Stand-ins for answers: whole GSM8K solutions of 353 bytes and more (English) and whole KoBEST BoolQ paragraphs of 303
bytes and more (Korean); both average about 480 bytes. The items are the questions that belong to them, with five worked
examples from shorter texts.

Rates are the best of some rounds: a shared machine only ever makes them worse; CPU time is told beside them. PostgreSQL
is one that this starts, with fsync as in its defaults; left out where it is not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from qualab.model.canonical import plan_hash
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Change, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import AnswerStatus, Api, ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import DecisionRule, Plan, RequestPolicy, SamplingPlan
from qualab.store import Store, open_store, upgrade
from tests.store import postgresql

MIGRATIONS = Path(__file__).parents[1] / "migrations"
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
METRICS = ("exact_match,strict-match", "exact_match,flexible-extract")

Pair = tuple[str, str]
"""A question and the text that stands for a model's answer to it."""


def english(shared: Path) -> tuple[list[Pair], list[Pair]]:
    """The pairs that are asked and answered, and others for worked examples."""
    rows = _jsonl(shared / "data/gsm8k/train.jsonl")
    return _split([(row["question"], row["answer"]) for row in rows], at_bytes=353)


def korean(shared: Path) -> tuple[list[Pair], list[Pair]]:
    """The pairs that are asked and answered, and others for worked examples."""
    rows = [row for name in ("train", "test") for row in _jsonl(shared / f"data/kobest/boolq/{name}.jsonl")]
    return _split([(row["question"], row["paragraph"]) for row in rows], at_bytes=303)


def make_items(asked: Sequence[Pair], shown: Sequence[Pair], n_items: int) -> Iterator[Item]:
    """Items with five worked examples each, as GSM8K is asked."""
    rng = random.Random(3)
    for position in range(n_items):
        question, answer = asked[position % len(asked)]
        shots = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in rng.sample(shown, 5))
        text = f"{shots}Question: {question}\nAnswer:"
        payload = {"model": "model", "prompt": text, "max_tokens": 256, "temperature": 0.0, "stop": ["Question:"]}
        yield Item(
            position=position,
            task="gsm8k",
            doc_id=position,
            kind=RequestKind.GENERATION,
            doc={"question": question},
            target=answer.rsplit("#### ", 1)[-1] if "####" in answer else "",
            prompts=(Prompt(text=text, gen_kwargs={"until": ["Question:", "</s>"], "temperature": 0.0}),),
            requests=(Request(choice=0, api=Api.COMPLETIONS, payload=payload),),
        )


def make_answers(texts: Sequence[str], n_items: int) -> list[Answer]:
    """Both arms' answers, interleaved as a run brings them, a little out of order."""
    rng = random.Random(7)
    order = [(position + rng.randint(0, 15), arm, position) for position in range(n_items) for arm in ArmName]
    return [
        make_answer(arm, position, texts[(position + (arm is ArmName.CANDIDATE)) % len(texts)], rng)
        for _, arm, position in sorted(order)
    ]


def make_answer(arm: ArmName, position: int, text: str, rng: random.Random) -> Answer:
    """An answer with the figures of a real one."""
    reply = Reply(
        status=AnswerStatus.OK,
        text=text,
        loglikelihood=None,
        is_greedy=None,
        finish_reason="stop",
        prompt_tokens=rng.randint(700, 1_100),
        completion_tokens=len(text) // 4,
        attempts=1,
        latency_s=rng.lognormvariate(0.5, 0.4),
        sent_at=START + timedelta(seconds=position * 0.11 + rng.random()),
        system_fingerprint=f"fp_{arm}",
        error="",
    )
    digest = hashlib.sha256(str(position).encode()).digest()[:16]
    return Answer(arm=arm, position=position, choice=0, repeat=0, request_hash=digest, reply=reply)


def make_outcome(position: int, repeat: int) -> Outcome:
    """One in fifteen flips."""
    change = (Change.GAIN, Change.LOSS)[position % 2] if position % 15 == 0 else Change.SAME
    return Outcome(
        position=position,
        repeat=repeat,
        task="gsm8k",
        doc_id=position,
        kind=RequestKind.GENERATION,
        change=change,
        baseline=float(change is Change.LOSS),
        candidate=float(change is Change.GAIN),
        different_text=change is not Change.SAME,
        length=400,
    )


def make_comparison(identity: str) -> Comparison:
    """A comparison without a task: the store does not look into plans."""
    plan = Plan(
        suite="custom",
        requested=("gsm8k",),
        tasks=(),
        metrics=(),
        sampling=SamplingPlan(model="model", api=Api.COMPLETIONS),
        policy=RequestPolicy(),
        rule=DecisionRule(),
        limit=None,
        num_fewshot=None,
        harness_version="0.4.13",
    )
    return Comparison(
        id=identity,
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.PLANNED,
        label="",
        created_at=START,
    )


def measure_bytes(directory: Path, title: str, asked: Sequence[Pair], shown: Sequence[Pair]) -> None:
    """Bytes that an answer adds to a SQLite file."""
    answers = make_answers([answer for _, answer in asked], len(asked))
    text_bytes = sum(len((answer.reply.text or "").encode()) for answer in answers) / len(answers)
    where = directory / f"{title}.db"
    with open_store(str(where), migrations=MIGRATIONS) as store:
        store.create(make_comparison("only"), make_items(asked, shown, len(asked)))
    before = _size(where)
    with open_store(str(where), migrations=MIGRATIONS) as store:
        _add(store, "only", answers)
    each = (_size(where) - before) / len(answers)
    print(f"{title}: {len(answers):,} answers of {text_bytes:.0f} bytes take {each:.0f} bytes each")


def measure_rates(where: str, title: str, asked: Sequence[Pair], shown: Sequence[Pair], rounds: int) -> None:
    """Rows a second of every way through the port, 20,000 answers."""
    n_items = 10_000
    items = list(make_items(asked, shown, n_items))
    answers = make_answers([answer for _, answer in asked], n_items)
    scores = [
        Score(arm=answer.arm, position=answer.position, repeat=0, metric=metric, value=1.0)
        for answer in answers
        for metric in METRICS
    ]
    outcomes = [make_outcome(number, repeat) for repeat in range(4) for number in range(n_items)]
    first, rest = answers[:500], answers[500:]
    best: dict[str, tuple[float, float]] = {}
    with open_store(where, migrations=MIGRATIONS) as store:
        for number in range(rounds):
            name = f"port-{number}"
            steps: dict[str, tuple[int, Callable[[], object]]] = {
                "items created": (n_items, partial(store.create, make_comparison(name), items)),
                "answers, one a commit": (len(first), partial(_add, store, name, first, size=1)),
                "answers, 1,000 a commit": (len(rest), partial(_add, store, name, rest)),
                "duplicates refused": (len(rest), partial(store.add_answers, name, rest)),
                "answered": (len(answers), partial(store.answered, name)),
                "answers read": (len(answers), partial(_read_answers, store, name)),
                "items read": (n_items, partial(_read_items, store, name)),
                "scores put": (len(scores), partial(store.put_scores, name, scores)),
                "scores read": (len(scores), partial(_read_scores, store, name)),
                "outcomes put": (len(outcomes), partial(store.put_outcomes, name, outcomes)),
                "outcomes replaced": (len(outcomes), partial(store.put_outcomes, name, outcomes)),
            }
            for step, (count, action) in steps.items():
                wall_s, cpu_s = _timed(action)
                rate, cpu_us = best.get(step, (0.0, float("inf")))
                best[step] = max(rate, count / wall_s), min(cpu_us, 1e6 * cpu_s / count)
    for step, (rate, cpu_us) in best.items():
        print(f"{title}: {step:<24} {rate:>9,.0f} rows/s (CPU {cpu_us:.1f} us a row)")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        raise SystemExit("set QUALAB_SHARED to the directory that holds data/gsm8k and data/kobest")
    pairs = {"English": english(Path(shared)), "Korean": korean(Path(shared))}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for title, (asked, shown) in pairs.items():
            measure_bytes(directory, title, asked, shown)
        measure_rates(str(directory / "port.db"), "SQLite", *pairs["English"], arguments.rounds)
    if postgresql.binaries() is None:
        print("PostgreSQL: not installed")
        return
    with postgresql.running("fsync=on", "full_page_writes=on") as folder:
        url = f"postgresql://qualab@/postgres?host={folder}"
        upgrade(url, MIGRATIONS)
        measure_rates(url, "PostgreSQL", *pairs["English"], arguments.rounds)


def _split(pairs: Iterable[Pair], *, at_bytes: int) -> tuple[list[Pair], list[Pair]]:
    distinct = list({answer: (question, answer) for question, answer in pairs}.values())
    is_long = [len(answer.encode()) >= at_bytes for _, answer in distinct]
    return (
        [pair for pair, long in zip(distinct, is_long, strict=True) if long],
        [pair for pair, long in zip(distinct, is_long, strict=True) if not long],
    )


def _add(store: Store, name: str, answers: Sequence[Answer], *, size: int = 1_000) -> None:
    for first in range(0, len(answers), size):
        store.add_answers(name, answers[first : first + size])


def _read_answers(store: Store, name: str) -> None:
    for arm in ArmName:
        _consume(store.answers(name, arm=arm))


def _read_items(store: Store, name: str) -> None:
    _consume(store.items(name))


def _read_scores(store: Store, name: str) -> None:
    _consume(store.scores(name))


def _consume(rows: Iterable[object]) -> None:
    for _ in rows:
        pass


def _size(where: Path) -> int:
    return sum(path.stat().st_size for path in where.parent.glob(f"{where.name}*"))


def _timed(action: Callable[[], object]) -> tuple[float, float]:
    start, cpu_start = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - cpu_start


def _jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
