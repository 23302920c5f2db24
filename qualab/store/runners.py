"""Which runners live, as far as this machine can tell."""

from __future__ import annotations

import os
import socket
from datetime import datetime

from qualab.model.registry import Claim, is_gone, may_claim


def may_take(held: Claim | None, *, runner: str, now: datetime, stale_after_s: float) -> bool:
    """Whether a runner may take what is `held` so."""
    return may_claim(
        held, runner=runner, now=now, stale_after_s=stale_after_s, host=socket.gethostname(), is_alive=is_alive
    )


def lives(claim: Claim, *, now: datetime, stale_after_s: float) -> bool:
    """Whether a claim's runner gives signs of life."""
    return not is_gone(claim, now=now, stale_after_s=stale_after_s, host=socket.gethostname(), is_alive=is_alive)


def is_alive(process: int) -> bool:
    """Whether a process of this machine exists. Without a way to ask (Windows) it is taken to."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
