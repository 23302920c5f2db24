"""Stands in for `vllm serve`: answers /health and /v1/models after a while, has children, and misbehaves on demand.

Told by the environment: FAKE_RECORD (a folder: what it was started with goes to PORT.json), FAKE_DELAY_S,
FAKE_FAIL (arms that end with code 3), FAKE_DIE_AFTER_S (arms as "candidate:0.5"), FAKE_IGNORES_SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHILD = "import time; time.sleep(600)"


def value(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = {"data": [{"id": value("--served-model-name")}]}
        found = {"/health": b"", "/v1/models": json.dumps(models).encode()}.get(self.path)
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")


def children() -> list[int]:
    """One in the server's own group, one that has left it; they ignore what the server ignores."""
    return [subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=leaves).pid for leaves in (False, True)]


def main() -> None:
    arm = "candidate" if "--speculative-config" in sys.argv else "baseline"
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
    dies, _, after_s = os.environ.get("FAKE_DIE_AFTER_S", "").partition(":")
    if dies == arm:
        threading.Timer(float(after_s), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
