"""What the store costs: bytes a row and rows a second, beside raw sqlite3 writing the same blobs in the same run.

    QUALAB_SHARED=DIR python benchmarks/store.py [--rounds N]

Stand-ins for answers: whole GSM8K solutions of 353 bytes and more (English) and whole KoBEST BoolQ paragraphs of 303
bytes and more (Korean); both average about 480 bytes. The items are the questions that belong to them, with five worked
examples from shorter texts: the dictionaries are trained on those, and see none of the answers. The candidate's answers
are, first, other texts than the baseline's; then the same in 46 % of the pairs (23 of 50, as one bfloat16 pair with
greedy sampling gave them on short English answers) and, in the others, the same up to a random place, which is assumed.

Rates are the best of some rounds, raw and through the port in turn: a shared machine only ever makes them worse.
PostgreSQL is one that this starts, with fsync as in its defaults; left out where it is not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
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
from qualab.store import SqlStore, open_store, upgrade
from qualab.store.bulk import chunks
from qualab.store.engine import PAGE_BYTES
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


def make_answers(texts: Sequence[str], n_items: int, *, same_share: float | None) -> list[Answer]:
    """Both arms' answers, interleaved as a run brings them, a little out of order. `same_share` None: unlike texts."""
    rng = random.Random(7)
    order = [(position + rng.randint(0, 15), arm, position) for position in range(n_items) for arm in ArmName]
    return [
        make_answer(arm, position, make_text(texts, arm, position, same_share), rng)
        for _, arm, position in sorted(order)
    ]


def make_text(texts: Sequence[str], arm: ArmName, position: int, same_share: float | None) -> str:
    """What an arm says at a position."""
    rng = random.Random(position)
    mine, other = texts[position % len(texts)], texts[(position + 1) % len(texts)]
    if arm is ArmName.BASELINE or (same_share is not None and rng.random() < same_share):
        return mine
    if same_share is None:
        return other
    place = rng.randrange(len(mine))
    return mine[:place] + other[place:]


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
        started_at=None,
        finished_at=None,
        verdict=None,
        stop_reason="",
        duplicates=0,
    )


def measure_answers(
    directory: Path,
    title: str,
    asked: Sequence[Pair],
    shown: Sequence[Pair],
    *,
    same_share: float | None,
    rounds: int,
) -> None:
    """Bytes a row on SQLite and rows a second, with raw sqlite3 as the floor."""
    answers = make_answers([answer for _, answer in asked], len(asked), same_share=same_share)
    text_bytes = sum(len((answer.reply.text or "").encode()) for answer in answers) / len(answers)
    port, raw, each, dictionary, cpu_s = 0.0, 0.0, 0.0, 0.0, float("inf")
    for number in range(rounds):
        where = directory / f"{title}-{number}.db"
        with open_store(str(where), migrations=MIGRATIONS) as store:
            store.create(make_comparison("only"), make_items(asked, shown, len(asked)))
        before = _size(where)
        with open_store(str(where), migrations=MIGRATIONS) as store:
            store.answered("only")
            cpu_before_s = time.process_time()
            port = max(port, len(answers) / _timed(partial(_add, store, "only", answers)))
            cpu_s = min(cpu_s, time.process_time() - cpu_before_s)
        dictionary = _dictionary_bytes(where) / len(answers)
        each = (_size(where) - before) / len(answers) + dictionary
        raw = max(raw, _raw_rate(where))
    print(
        f"{title}: {len(answers):,} answers of {text_bytes:.0f} bytes take {each:.0f} bytes a row"
        f" ({dictionary:.0f} of them for the dictionary); 1,000 a commit {port:,.0f} rows/s"
        f" (CPU {1e6 * cpu_s / len(answers):.1f} us a row), raw sqlite3 {raw:,.0f} rows/s"
    )


def measure_port(where: str, title: str, asked: Sequence[Pair], shown: Sequence[Pair]) -> None:
    """Rows a second of every way through the port, 20,000 answers."""
    n_items = 10_000
    items = list(make_items(asked, shown, n_items))
    answers = make_answers([answer for _, answer in asked], n_items, same_share=0.46)
    scores = [
        Score(arm=answer.arm, position=answer.position, repeat=0, metric=metric, value=1.0)
        for answer in answers
        for metric in METRICS
    ]
    outcomes = [make_outcome(number, repeat) for repeat in range(4) for number in range(n_items)]
    first, rest = answers[:500], answers[500:]
    with open_store(where, migrations=MIGRATIONS) as store:
        steps: dict[str, tuple[int, Callable[[], object]]] = {
            "items created": (n_items, lambda: store.create(make_comparison("port"), items)),
            "answers, one a commit": (len(first), lambda: [store.add_answers("port", [one]) for one in first]),
            "answers, 1,000 a commit": (len(rest), lambda: _add(store, "port", rest)),
            "duplicates refused": (len(rest), lambda: store.add_answers("port", rest)),
            "answered": (len(answers), lambda: store.answered("port")),
            "answers read": (len(answers), lambda: [list(store.answers("port", arm=arm)) for arm in ArmName]),
            "items read": (n_items, lambda: list(store.items("port"))),
            "scores put": (len(scores), lambda: store.put_scores("port", scores)),
            "scores read": (len(scores), lambda: list(store.scores("port"))),
            "outcomes put": (len(outcomes), lambda: store.put_outcomes("port", outcomes)),
            "outcomes replaced": (len(outcomes), lambda: store.put_outcomes("port", outcomes)),
        }
        rates = {name: count / _timed(action) for name, (count, action) in steps.items()}
    print(f"{title}, rows/s: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))


def create_many(where: str, shared: str) -> None:
    """20,000 items with their prompts as a stream; prints the time and what memory grew by."""
    asked, shown = english(Path(shared))
    with open_store(where, migrations=MIGRATIONS) as store:
        before = _peak_mb()
        took = _timed(lambda: store.create(make_comparison("many"), make_items(asked, shown, 20_000)))
        print(f"create: 20,000 items in {took:.1f} s, peak memory {before:.0f} MB before, {_peak_mb():.0f} MB after")


def measure_processes(directory: Path, shared: str, rounds: int) -> None:
    """Whole processes: creating many items, and listing beside the import of SQLAlchemy alone."""
    this = Path(__file__)
    code = f"import sys; sys.path.insert(0, {str(this.parent)!r}); import store; store.create_many(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, str(directory / "many.db"), shared], check=True)
    listing = (
        "import sys; from pathlib import Path; from qualab.store import open_store;"
        "from qualab.model.ports import ComparisonFilter;"
        "assert open_store(sys.argv[1], migrations=Path(sys.argv[2])).list(ComparisonFilter())"
    )
    for title, source in {"import sqlalchemy": "import sqlalchemy", "import, open, list": listing}.items():
        command = [sys.executable, "-c", source, str(directory / "many.db"), str(MIGRATIONS)]
        best = min(_timed(partial(subprocess.run, command, check=True)) for _ in range(rounds))
        print(f"process: {title} {best:.3f} s")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        raise SystemExit("set QUALAB_SHARED to the directory that holds data/gsm8k and data/kobest")
    pairs = {"English": english(Path(shared)), "Korean": korean(Path(shared))}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        for title, (asked, shown) in pairs.items():
            for kind, share in {"unlike arms": None, "arms 46 % alike": 0.46}.items():
                name = f"{title}, {kind}"
                measure_answers(directory, name, asked, shown, same_share=share, rounds=arguments.rounds)
        measure_port(str(directory / "port.db"), "SQLite", *pairs["English"])
        measure_processes(directory, shared, arguments.rounds)
    if postgresql.binaries() is None:
        print("PostgreSQL: not installed")
        return
    with postgresql.running("fsync=on", "full_page_writes=on") as folder:
        url = f"postgresql://qualab@/postgres?host={folder}"
        upgrade(url, MIGRATIONS)
        measure_port(url, "PostgreSQL", *pairs["English"])


def _split(pairs: Iterable[Pair], *, at_bytes: int) -> tuple[list[Pair], list[Pair]]:
    distinct = list({answer: (question, answer) for question, answer in pairs}.values())
    is_long = [len(answer.encode()) >= at_bytes for _, answer in distinct]
    return (
        [pair for pair, long in zip(distinct, is_long, strict=True) if long],
        [pair for pair, long in zip(distinct, is_long, strict=True) if not long],
    )


def _add(store: SqlStore, identity: str, answers: Sequence[Answer]) -> None:
    for batch in chunks(answers):
        store.add_answers(identity, batch)


def _raw_rate(where: Path) -> float:
    """Rows a second of sqlite3.executemany with the rows as they are in the file, into a table of the same schema."""
    with sqlite3.connect(where) as source:
        (schema,) = source.execute("SELECT sql FROM sqlite_master WHERE name = 'answer'").fetchone()
        rows = source.execute("SELECT * FROM answer ORDER BY position, arm").fetchall()
    target = sqlite3.connect(where.with_suffix(".raw"), isolation_level=None)
    for pragma in (f"page_size = {PAGE_BYTES}", "journal_mode = WAL", "synchronous = NORMAL"):
        target.execute(f"PRAGMA {pragma}")
    target.execute(schema)
    statement = f"INSERT INTO answer VALUES ({', '.join('?' * len(rows[0]))}) ON CONFLICT DO NOTHING"
    return len(rows) / _timed(partial(_raw_add, target, statement, rows))


def _raw_add(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    for batch in chunks(rows):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, batch)
        connection.execute("COMMIT")


def _dictionary_bytes(where: Path) -> int:
    with sqlite3.connect(where) as connection:
        return int(connection.execute("SELECT coalesce(sum(length(data)), 0) FROM dictionary").fetchone()[0])


def _size(where: Path) -> int:
    return sum(path.stat().st_size for path in where.parent.glob(f"{where.name}*"))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
