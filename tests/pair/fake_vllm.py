"""Stands in for `vllm serve`: the scripted server, which drafts for the candidate; it has children, and misbehaves.

Told by the environment: FAKE_RECORD (a folder: what it was started with goes to PORT.json), FAKE_DELAY_S,
FAKE_LATENCY_S, FAKE_FAIL (arms that end with code 3), FAKE_DIE_AFTER_S (arms as "candidate:0.5"),
FAKE_IGNORES_SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def value(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


def children() -> list[int]:
    """One in the server's own group, one that has left it; they ignore what the server ignores."""
    return [subprocess.Popen(["sleep", "600"], start_new_session=leaves).pid for leaves in (False, True)]


def main() -> None:
    is_candidate = "--speculative-config" in sys.argv
    arm = "candidate" if is_candidate else "baseline"
    if os.environ.get("FAKE_IGNORES_SIGTERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port = int(value("--port"))
    started = {"argv": sys.argv[1:], "pid": os.getpid(), "children": children(), "env": dict(os.environ)}
    (Path(os.environ["FAKE_RECORD"]) / f"{port}.json").write_text(json.dumps({**started, "at_s": time.time()}))
    print(f"loading the {arm}", flush=True)
    if arm in os.environ.get("FAKE_FAIL", ""):
        print("RuntimeError: no such drafter", file=sys.stderr)
        sys.exit(3)
    time.sleep(float(os.environ.get("FAKE_DELAY_S", "0")))

    from tests.scripted_server import Script, ScriptedServer

    script = Script(drafts=is_candidate, latency_s=float(os.environ.get("FAKE_LATENCY_S", "0")))
    dies, _, after_s = os.environ.get("FAKE_DIE_AFTER_S", "").partition(":")

    def ready() -> None:
        if dies == arm:
            threading.Timer(float(after_s), os.kill, (os.getpid(), signal.SIGKILL)).start()

    asyncio.run(ScriptedServer(script, port=port, model=value("--served-model-name")).serve(ready))


if __name__ == "__main__":
    main()
