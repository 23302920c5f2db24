"""Whatever is done to them, the store in memory and the one in SQLite say the same."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qualab.errors import QualabError
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter, Store
from qualab.store import open_store
from qualab.store.memory import MemoryStore
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    NOW,
    after,
    make_analysis,
    make_answer,
    make_comparison,
    make_items,
    make_look,
    make_score,
)

Step = Callable[[Store], Any]

ids = st.sampled_from(["a", "ab", "abc", "b"])
arms = st.sampled_from(ArmName)
texts = st.sampled_from(["", "18", "the same long text in both arms", "the same long text, but not to its end"])
moments = st.integers(0, 200)
runners = st.sampled_from(["host-1:1:x", "host-2:2:y"])
answers = st.builds(
    lambda position, arm, text, repeat, status, run: make_answer(
        position, arm, text, repeat=repeat, status=status, run=run
    ),
    st.integers(0, 3),
    arms,
    texts | st.none() | st.text(max_size=30),
    st.integers(0, 1),
    st.sampled_from(AnswerStatus),
    st.sampled_from([0, 0, 0, 1, 2]),
)
scores = st.builds(
    lambda position, arm, value, metric: make_score(position, arm, value, metric=metric),
    st.integers(0, 3),
    arms,
    st.floats(allow_nan=False),
    st.sampled_from(["acc,none", "f1,none"]),
)

steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda id_, n, at, label: (
            lambda store: store.create(make_comparison(id_, created_at=after(at), label=label), make_items(n))
        ),
        ids,
        st.integers(0, 3),
        moments,
        st.sampled_from(["", "x"]),
    ),
    st.builds(lambda id_: lambda store: store.get(id_), ids),
    st.builds(lambda id_, some: lambda store: store.add_answers(id_, some), ids, st.lists(answers, max_size=6)),
    st.builds(
        lambda id_, position: lambda store: store.drop_failures(id_, from_position=position), ids, st.integers(0, 3)
    ),
    st.builds(
        lambda id_, number: lambda store: store.add_look(id_, make_look(number), now=NOW), ids, st.integers(1, 3)
    ),
    st.builds(lambda id_, some: lambda store: store.put_scores(id_, some), ids, st.lists(scores, max_size=4)),
    st.builds(
        lambda id_, status, at, why: lambda store: store.set_status(id_, status, now=after(at), stop_reason=why),
        ids,
        st.sampled_from(ComparisonStatus),
        moments,
        st.sampled_from(["", "why\x00"]),
    ),
    st.builds(
        lambda id_, runner, at: lambda store: store.claim(id_, runner=runner, now=after(at), stale_after_s=60),
        ids,
        runners,
        moments,
    ),
    st.builds(
        lambda id_, runner, at: lambda store: store.heartbeat(id_, runner=runner, now=after(at)), ids, runners, moments
    ),
    st.builds(lambda id_, runner: lambda store: store.release(id_, runner=runner), ids, runners),
    st.builds(
        lambda id_, verdict, at: lambda store: store.put_analysis(make_analysis(id_, verdict), now=after(at)),
        ids,
        st.sampled_from(Verdict),
        moments,
    ),
)


def outcome(step: Step, store: Store) -> object:
    try:
        return step(store)
    except QualabError as error:
        return type(error), str(error)


def everything(store: Store) -> object:
    comparisons = store.list(ComparisonFilter())
    return [
        (
            comparison,
            list(store.items(comparison.id)),
            [list(store.answers(comparison.id, arm=arm)) for arm in ArmName],
            [store.answered(comparison.id, run=run) for run in range(3)],
            [list(store.answers(comparison.id, arm=ArmName.BASELINE, run=run)) for run in (1, 2)],
            list(store.scores(comparison.id)),
            list(store.looks(comparison.id)),
            store.analysis(comparison.id),
        )
        for comparison in comparisons
    ]


@settings(max_examples=60, deadline=None)
@given(done=st.lists(steps, min_size=3, max_size=25))
def test_both_stores_say_the_same(done: list[Step], template: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(template, Path(folder) / "q.db")
        memory = MemoryStore()
        with open_store(str(path), migrations=MIGRATIONS) as database:
            for step in done:
                assert outcome(step, memory) == outcome(step, database)
            assert everything(memory) == everything(database)
        with open_store(str(path), migrations=MIGRATIONS) as reopened:
            assert everything(memory) == everything(reopened)
