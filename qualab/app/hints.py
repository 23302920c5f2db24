"""What to type next. Apart from the use cases, because short commands say it too."""

from __future__ import annotations


def resume_hint(comparison_id: str, *, retry_failed: bool = False) -> str:
    """What to type to go on."""
    flag = " --retry-failed" if retry_failed else ""
    return f"Everything answered so far is stored. Go on with: qualab resume {comparison_id}{flag}"
