"""Who acts at this command line, for the record of changes."""

from __future__ import annotations

import getpass
import socket


def who() -> str:
    """As "user@host"."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in many containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"
