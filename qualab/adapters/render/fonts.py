"""The fonts that reports are set in: Noto, from packages, never from the machine."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from qualab.errors import RenderError

PACKAGES = ("manimgx_fonts_cjk", "manimgx_fonts")
FAMILIES = ("Noto Sans", "Noto Sans CJK KR", "Noto Sans Symbols", "Noto Emoji")
"""Asked in this order for each character, before the fonts of other scripts."""


@cache
def folders() -> tuple[Path, ...]:
    """Where the packages keep their fonts. Raises RenderError where one is not installed."""
    return tuple(map(_folder, PACKAGES))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RenderError(f"The fonts of {package} are missing", hint="Reinstall qualab")
    return Path(spec.origin).parent
