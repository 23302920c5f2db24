"""`qualab run --audit` and `qualab audit`: what they print, their exit codes, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, naming, write_table
from tests.scripted_engine import EngineScript
from tests.scripted_lm import Fault, LanguageModel
from tests.scripted_server import Script, ScriptedServer

TASKS = ["--tasks", "demo_arithmetic", "--limit", 20, "--allow-unobserved"]
NEUTRAL = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
ENGINE = EngineScript(settings=("return_token_ids", *NEUTRAL))


@pytest.fixture
def sharp() -> Iterator[list[str]]:
    """A pair whose candidate takes the drafter's tokens when sampling."""
    off = Script(engine=ENGINE, lm=LanguageModel())
    on = Script(engine=ENGINE, lm=LanguageModel(fault=Fault.ALWAYS), drafts=True)
    with ScriptedServer(off) as baseline, ScriptedServer(on) as candidate:
        yield naming(baseline, candidate)


def test_a_run_with_an_audit_is_a_regression_where_sampling_is_broken_though_no_answer_changed(
    qualab: Command, sharp: list[str]
) -> None:
    plain = qualab("run", *sharp, *TASKS)
    assert plain.code == 3, plain.err
    done = qualab("run", *sharp, *TASKS, "--audit", "--audit-items", 12)
    assert done.code == 1, done.err
    said = done.err.splitlines()
    assert "Token audit: asking 12 items again at temperature 1 ..." in said
    assert "Token audit: the baseline scores 64 answers ..." in said
    refused = qualab("audit", done.comparison_id, "--audit-items", 6)
    assert (refused.code, "holds the audit's sizes" in refused.err) == (2, True)
    later = qualab("audit", plain.comparison_id, "--audit-items", 10)
    assert later.code == 1, later.err
    assert "Token audit: the baseline scores 60 answers ..." in later.err.splitlines()
    shown = qualab.json("show", plain.comparison_id)
    assert (shown["comparison"]["status"], shown["analysis"]["audit"]["ruling"]) == ("finished", "FOREIGN")
    again = qualab("audit", plain.comparison_id, "--audit-items", 10)
    assert (again.code, "Token audit" in again.err) == (1, False)
    assert later.out == again.out == qualab("show", plain.comparison_id).out


def test_an_imported_comparison_is_not_audited(qualab: Command, tmp_path: Path) -> None:
    imported = qualab.json("import", write_table(tmp_path / "scores.csv", [(1, 0)] * 40))["comparison"]["id"]
    refused = qualab("audit", imported)
    assert (refused.code, "was imported from logs: it cannot be audited" in refused.err) == (2, True)
