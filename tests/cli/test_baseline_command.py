"""`qualab baseline`, and runs and plans that name a bank, over HTTP with lm-eval's real tasks."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_a_baseline_is_banked_used_shown_and_dropped(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    options = [*arms, "--tasks", "demo_arithmetic", "--limit", 12]
    assert "No baseline is banked" in qualab("baseline", "list").out
    done = qualab("run", *options, "--noise-floor-runs", 1)
    added = qualab("baseline", "add", "nightly", done.comparison_id)
    assert added.code == 0, added.err
    assert f"of {done.comparison_id}" in qualab("baseline", "list").out
    shown = qualab.json("baseline", "show", "nightly")
    assert (shown["comparison_id"], shown["n_runs"], shown["noise"]["n_texts_differ"]) == (done.comparison_id, 2, 0)
    for text in ("Noise       0 of 12 texts", "Answers     2 an item", "Engine      vLLM"):
        assert text in qualab("baseline", "show", "nightly").out
    plan = tmp_path / "plan.yaml"
    planned = qualab("plan", *options[4:], "--bank", "nightly", "--bank-sample", 5, "--output", plan)
    assert "it is asked 5 items again" in " ".join(planned.out.split())
    again = qualab("run", plan, *arms[:4])
    assert again.code == done.code, again.err
    assert "baseline 29/29" in again.err
    first, second = (qualab.json("show", one.comparison_id)["analysis"] for one in (done, again))
    assert second["metrics"] == first["metrics"]
    assert any("come from bank nightly" in caveat["text"] for caveat in second["caveats"])
    assert qualab("preflight", plan, *arms[:4]).code == 0
    for other, says in (
        (["--bank", "weekly"], "no banked baseline named 'weekly'"),
        (["--bank", "nightly", "--gen_kwargs", "top_p=0.9"], "it differs in generation settings"),
        (["--bank", "nightly", "--limit", 10], "it differs in limit (12.0, now 10.0)"),
    ):
        refused = qualab("preflight", *options, *other)
        assert (refused.code, says in refused.err) == (2, True), refused.err
    kept = qualab("prune", "--older-than", "0s")
    assert f"kept (holds a banked baseline): {done.comparison_id}" in kept.out
    assert "banked no more" in qualab("baseline", "drop", "nightly").out
    gone = qualab("run", *options, "--bank", "nightly")
    assert (gone.code, "no banked baseline named 'nightly'" in gone.err) == (2, True)
