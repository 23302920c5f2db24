"""Stands in for `vllm serve` where a comparison is run: the scripted endpoint, which drafts for the candidate.

An arm whose VLLM_PORT is "no" does not start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.scripted_server import Script, ScriptedServer


def main() -> None:
    def value(flag: str) -> str:
        return sys.argv[sys.argv.index(flag) + 1]

    if os.environ.get("VLLM_PORT") == "no":
        sys.exit(3)
    port = int(value("--port"))
    record = {"argv": sys.argv[1:], "pid": os.getpid(), "children": [], "key": os.environ.get("VLLM_API_KEY")}
    (Path(os.environ["FAKE_RECORD"]) / f"{port}.json").write_text(json.dumps(record))
    script = Script(drafts="--speculative-config" in sys.argv, latency_s=float(os.environ.get("FAKE_LATENCY_S", "0")))
    asyncio.run(ScriptedServer(script, port=port, model=value("--served-model-name")).serve(lambda: None))


if __name__ == "__main__":
    main()
