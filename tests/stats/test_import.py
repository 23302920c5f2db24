"""What importing the statistics costs."""

from __future__ import annotations

import json
import subprocess
import sys


def test_importing_the_statistics_loads_nothing_heavy() -> None:
    program = "import json, sys, qualab.stats; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    heavy = ("statsmodels", "pandas", "scipy.special", "scipy.stats", "scipy.optimize", "sklearn", "lm_eval")
    assert [name for name in loaded if name.startswith(heavy)] == []
    assert [name for name in loaded if name.startswith("qualab.") and not name.startswith("qualab.stats")] == [
        "qualab.errors"
    ]
