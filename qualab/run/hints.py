"""What to type next. Apart from the use cases, because short commands say it too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qualab.errors import QualabError


def resume_hint(comparison_id: str, *, retry_failed: bool = False) -> str:
    """What to type to go on."""
    flag = " --retry-failed" if retry_failed else ""
    return f"Everything answered so far is stored. Go on with: qualab resume {comparison_id}{flag}"


@contextmanager
def way_on(comparison_id: str) -> Iterator[None]:
    """Whatever ends the work on a stored comparison says how to go on."""
    try:
        yield
    except QualabError as error:
        if "qualab resume" not in error.hint:
            error.hint = ". ".join(filter(None, (error.hint, f"Go on with: qualab resume {comparison_id}")))
        raise
