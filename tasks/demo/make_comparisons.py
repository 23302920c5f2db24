"""Makes comparisons.db.zst, what `qualab demo` shows: three comparisons of real pairs, asked here and now.

    python tasks/demo/make_comparisons.py --baseline http://127.0.0.1:8101/v1 --candidate http://127.0.0.1:8102/v1

Two are of the embedded llama.cpp pair, which this script serves (extra `demo`). The third is of the two URLs: vLLM in
bfloat16 on a CPU, without a drafter and with n-gram lookup, one model under one name (--model). Runs go into a
database of their own (--work); what is in there already is not asked again. Packed is what the runs stored, without
their analyses, and with the paths of the models and the home directory cut out of what the engines tell.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import zstandard

from qualab import bootstrap
from qualab.managed.embedded import MODEL_ALIAS, embedded_pair, prepare_model
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.run.run import start
from qualab.settings import load

HERE = Path(__file__).parent
COMMON = {"tasks": ("demo_short",), "apply_chat_template": True, "concurrency": 8, "seed": 1}
LOSSLESS, SAMPLING, NO_DRAFTER = "demo-lossless", "demo-sampling", "demo-no-drafter"
PLANS: Mapping[str, Mapping[str, Any]] = {
    LOSSLESS: {"margin": 0.02},
    # two at a time: in bfloat16 the size of a batch rounds differently, so that some texts part
    SAMPLING: {"limit": 80, "margin": 0.05, "concurrency": 2, "audit": True, "audit_items": 80, "audit_max_tokens": 32},
    NO_DRAFTER: {"limit": 100, "margin": 0.05},
}


def ask(label: str, work: Path, baseline: str, candidate: str, model: str) -> None:
    """Run a comparison to its verdict."""
    given = {"baseline": baseline, "candidate": candidate, "model": model, "db": str(work), "label": label}
    settings = load(command_line={**COMMON, **PLANS[label], **given})
    analysis = asyncio.run(start(bootstrap.services_of(settings), settings))
    print(label, analysis and analysis.verdict)


def pack(work: Path, target: Path) -> None:
    """Copy the comparisons without analyses and places of this machine, and compress."""
    with tempfile.TemporaryDirectory() as folder, bootstrap.store_at(str(work)) as source:
        path = Path(folder) / "packed.db"
        with bootstrap.store_at(str(path)) as store:
            for comparison in source.list(ComparisonFilter(limit=len(PLANS))):
                bare = replace(comparison, status=ComparisonStatus.ANSWERED, verdict=None, local={})
                store.copy(bare, source)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            roots = connection.execute("SELECT DISTINCT body ->> '$.engine.model_root' FROM observation").fetchall()
            places = {f"{Path(root).parent}/": "/models/" for (root,) in roots if root} | {str(Path.home()): "~"}
            for place in places.items():
                connection.execute("UPDATE observation SET body = replace(body, ?, ?)", place)
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        target.write_bytes(zstandard.compress(path.read_bytes(), 19))
    print(f"Wrote {target}, {target.stat().st_size:,} bytes")


def ask_embedded(label: str, work: Path, *, drafts: bool) -> None:
    """Serve the embedded pair, and run a comparison of it; the check before its first item would end one without."""
    with (
        tempfile.TemporaryDirectory() as logs,
        embedded_pair(prepare_model(say=print), log_dir=Path(logs), drafts=drafts) as urls,
        nullcontext() if drafts else patch("qualab.run.preflight.stop_at"),
    ):
        ask(label, work, *urls, MODEL_ALIAS)


def main() -> None:
    """Asks what is missing, and packs all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--candidate", required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--work", type=Path, default=Path("demo-runs.db"))
    parser.add_argument("-o", "--output", type=Path, default=HERE / "comparisons.db.zst")
    given = parser.parse_args()
    with bootstrap.store_at(str(given.work)) as store:
        there = {own.label for own in store.list(ComparisonFilter(status=ComparisonStatus.FINISHED))}
    for label, drafts in ((LOSSLESS, True), (NO_DRAFTER, False)):
        if label not in there:
            ask_embedded(label, given.work, drafts=drafts)
    if SAMPLING not in there:
        ask(SAMPLING, given.work, given.baseline, given.candidate, given.model)
    pack(given.work, given.output)


if __name__ == "__main__":
    main()
