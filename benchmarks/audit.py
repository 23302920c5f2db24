"""The client's CPU time for scoring and storing an audited answer of 100 tokens.

    python benchmarks/audit.py [--quick]

Two scripted servers in processes of their own, one that drafts and one that does not, tell token ids and
log-probabilities as vLLM does. A run with `--audit` stores 300 items of both arms; then the time of this process is
taken while the audit scores them: reading what is stored, asking, parsing, packing, committing.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from qualab.bootstrap import run_async
from qualab.run import audit as use_case
from qualab.run.run import start
from tests.app.scripted_pair import MadeUpTasks, Pair
from tests.scripted_engine import EngineScript
from tests.scripted_lm import LanguageModel
from tests.scripted_server import Script, ScriptedServer

TOKENS = 100
SETTINGS = ("return_token_ids", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def serve(drafts: bool, pipe: Connection) -> None:
    """Serve until killed; tell the port."""
    lm = LanguageModel(end_every=10**6, stream=int(drafts))
    server = ScriptedServer(Script(engine=EngineScript(settings=SETTINGS), drafts=drafts, lm=lm))
    asyncio.run(server.serve(lambda: pipe.send(server.port)))


@contextmanager
def served(*, drafts: bool) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(drafts, theirs), daemon=True)
    process.start()
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{ours.recv()}/v1")
    finally:
        process.kill()
        process.join()


def measure(n_items: int) -> tuple[int, float, float]:
    """Return the tokens an answer, and its CPU and wall time in milliseconds."""
    taken: list[tuple[int, float, float]] = []
    score = use_case._Audit.score

    async def timed(self: Any, *args: Any) -> None:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        await score(self, *args)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        answers = [answer for answer in self.store.scored(self.run.id) if answer.scores]
        n_tokens = sum(len(answer.scores) // 12 for answer in answers)
        taken.append((n_tokens // len(answers), 1e3 * cpu_s / len(answers), 1e3 * wall_s / len(answers)))

    with ExitStack() as stack:
        baseline, candidate = (stack.enter_context(served(drafts=drafts)) for drafts in (False, True))
        stack.enter_context(patch.object(use_case._Audit, "score", timed))
        pair = Pair(baseline, candidate, tasks=MadeUpTasks(sizes={"sums": n_items}, settings={"max_gen_toks": TOKENS}))
        wanted = pair.wanted(audit=True, audit_items=n_items // 3, audit_max_tokens=TOKENS)
        run_async(start(pair.services, wanted))
    return taken[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    n_items, n_times = (60, 1) if parser.parse_args().quick else (300, 5)
    for n_tokens, cpu_ms, wall_ms in (measure(n_items) for _ in range(n_times)):
        print(f"{n_tokens} tokens an answer: {cpu_ms:.2f} ms of CPU, {wall_ms:.1f} ms of wall time")


if __name__ == "__main__":
    main()
