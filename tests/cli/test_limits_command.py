"""`qualab limits` on servers that break beyond a length in every way, and what it asks before it may kill one."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.model.names import ArmName
from qualab.run import limits
from tests.cli.conftest import Command, write_table
from tests.streaming_server import StreamingServer, Streams

HEALTHY = {"max_model_len": 2_048, "tokens_per_s": 10_000.0, "kv_tokens": 16_000}
Arms = tuple[StreamingServer, StreamingServer]
ABOVE = 1_200
TOLD = ("advertised", "verified", "refused_from", "fails_from", "n_deaths", "set_to")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_S", 0.05)
    monkeypatch.setattr(limits, "ALIVE_S", 0.5)


@pytest.fixture
def arms() -> Iterator[tuple[StreamingServer, StreamingServer]]:
    on = Streams(**HEALTHY | {"drafts": True, "kv_tokens": 12_000})
    with StreamingServer(Streams(**HEALTHY)) as baseline, StreamingServer(on) as candidate:
        yield baseline, candidate


def naming(*servers: StreamingServer) -> list[object]:
    urls = (part for name, own in zip(ArmName, servers, strict=True) for part in (f"--{name}", own.url))
    return [*urls, "--model", "scripted", "--timeout", 0.5]


@pytest.mark.parametrize(
    ("faults", "expected", "note"),
    [
        ({}, (2_048, 1_984, 2_056, None, 0, None), ""),
        ({"dies_above": ABOVE, "dead_s": 0.5}, (2_048, 1_024, None, 1_504, 2, 1_024), "limits.died-twice"),
        ({"dies_above": ABOVE, "dead_s": 9.0}, (2_048, 1_024, None, 1_984, 1, 1_024), "limits.stayed-dead"),
        ({"hangs_above": ABOVE}, (2_048, 1_144, 2_056, 1_204, 0, 1_024), "limits.baseline-longer"),
        ({"garbage_above": ABOVE}, (2_048, 1_144, 2_056, 1_204, 0, 1_024), "limits.baseline-longer"),
        ({"fails_above": ABOVE}, (2_048, 1_144, 2_056, 1_204, 0, 1_024), "limits.baseline-longer"),
        ({"fails_above": 100}, (2_048, None, None, 512, 0, None), "limits.baseline-longer"),
        ({"refuses_above": ABOVE, "told_factor": 0.5}, (2_048, 1_144, 1_204, None, 0, None), "limits.wrong-count"),
    ],
    ids=["healthy", "dies twice", "stays dead", "hangs", "garbage", "500", "500 at once", "400 with a wrong count"],
)
def test_each_way_to_break_is_found(
    qualab: Command, arms: Arms, faults: dict[str, Any], expected: tuple[int | None, ...], note: str
) -> None:
    off, on = arms
    for name, value in faults.items():
        setattr(on.script, name, value)
    found = qualab.json("limits", *naming(off, on), "--yes", "--recovery", 3)
    baseline, candidate = ({name: arm[name] for name in TOLD} for arm in found["limits"]["arms"])
    assert tuple(baseline.values()) == (2_048, 1_984, 2_056, None, 0, None)
    assert tuple(candidate.values()) == expected
    notes = [own["code"] for own in found["limits"]["arms"][1]["notes"]]
    assert note in notes if note else not notes
    lengths = found["limits"]["arms"][1]["lengths"]
    assert [own["prompt_tokens"] for own in lengths] == sorted(own["prompt_tokens"] for own in lengths)
    assert found["capacity"]["candidate_tokens"] == 12_000


def test_the_table_is_printed_and_an_arm_is_tried_alone(qualab: Command, arms: Arms) -> None:
    off, on = arms
    done = qualab("limits", *naming(off, on), "--yes", "--arm", "candidate")
    assert done.code == 0, done.err
    assert re.search(r"candidate +2,048 +1,984 +2,056", done.out)
    assert "−25.00 %" in done.out
    assert "candidate: 1,024 tokens, Korean, about" in done.err
    assert all(len(prompt) < 100 for prompt in off.prompts)
    shown = qualab("show", done.comparison_id)
    assert shown.code in (0, 3), shown.err


def test_candidates_share_the_baseline(qualab: Command, arms: Arms) -> None:
    off, on = arms
    with StreamingServer(Streams(**HEALTHY | {"drafts": True, "garbage_above": ABOVE})) as other:
        both = ["--baseline", off.url, "--candidates", f"k3={on.url},k5={other.url}", "--model", "scripted", "--yes"]
        done = qualab("limits", *both)
        assert done.code == 0, done.err
        verified = [int(n.replace(",", "")) for n in re.findall(r"\w+ +2,048 +([\d,]+)", done.out)]
        assert verified == [1_984, 1_984, 1_984, 1_144]
        assert "k5: 512 tokens, Korean, about" in done.err
        asked = [prompt for prompt in off.prompts if len(prompt) > 500]
        assert len(asked) == len({*asked}) == 7


def test_ctrl_c_loses_nothing_and_no_server_dies_of_one_prompt_twice(qualab: Command, arms: Arms) -> None:
    off, on = arms
    on.script.dies_above, on.script.dead_s = ABOVE, 2.0

    def interrupt() -> None:
        while not on.n_deaths:
            time.sleep(0.01)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = qualab("limits", *naming(off, on), "--yes")
    thread.join()
    assert (stopped.code, f"qualab limits {stopped.comparison_id}" in stopped.err) == (130, True)
    time.sleep(2.0)
    n_before = len(off.prompts)
    done = qualab.json("limits", stopped.comparison_id, "--yes", "--timeout", 1)
    assert (len(off.prompts), on.n_deaths) == (n_before, 2)
    candidate = done["limits"]["arms"][1]
    assert (candidate["verified"], candidate["n_deaths"], candidate["set_to"]) == (1_024, 2, 1_024)


def test_on_a_terminal_a_y_starts_it(qualab: Command, arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.cli.measure.sys.stdin.isatty", lambda: True, raising=False)
    for answer, code in ((False, 130), (True, 0)):
        monkeypatch.setattr("typer.confirm", lambda *_, answer=answer, **__: answer)
        assert qualab("limits", *naming(*arms), "--arm", "candidate").code == code


def test_it_asks_first_and_leaves_servers_in_use_alone(qualab: Command, arms: Arms, tmp_path: Path) -> None:
    off, on = arms
    refused = qualab("limits", *naming(off, on))
    assert (refused.code, "They can kill a server" in refused.err, "--yes" in refused.err) == (2, True, True)
    on.script.running = 2
    used = qualab("limits", *naming(off, on), "--yes")
    assert (used.code, "serves others, too" in used.err) == (2, True)
    on.script.running, on.script.foreign = 0, 1
    served = qualab("limits", used.comparison_id, "--yes")
    assert (served.code, "serves others, too" in served.err) == (2, True)
    on.script.foreign, on.script.has_tokenizer = 0, False
    mute = qualab("limits", used.comparison_id, "--yes")
    assert (mute.code, "offers no /tokenize" in mute.err) == (2, True)
    imported = qualab.json("import", write_table(tmp_path / "scores.csv", [(1, 0)] * 40))["comparison"]["id"]
    assert qualab("limits", imported, "--yes").code == 2
    short = qualab("limits", *naming(off, on), "--yes", "--start", 30)
    assert (short.code, "Give --start a larger number" in short.err) == (2, True)
