"""qualab: does turning a drafter on change what a served model answers?"""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import the Python API when it is first used: every command imports this module, and few of them the API."""
    from pkgutil import resolve_name  # noqa: PLC0415

    places = {"compare": "api", "load": "api", "StoredComparison": "api", "QualabError": "errors"}
    if name not in places:
        raise AttributeError(f"module 'qualab' has no attribute '{name}'")
    return resolve_name(f"qualab.{places[name]}:{name}")
