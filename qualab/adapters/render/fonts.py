"""The fonts that reports are set in: Noto, from packages, never from the machine."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from qualab.errors import RenderError

PACKAGES = ("manimgx_fonts_cjk", "manimgx_fonts")
FAMILIES = ("Noto Sans", "Noto Sans CJK KR", "Noto Sans Symbols", "Noto Emoji")
"""Asked in this order for each character, before the fonts of other scripts."""
_FIRST = ("NotoSans[", "NotoSansCJK", "NotoSansSymbols", "NotoEmoji")
"""How the names of their files begin."""
_KOREAN = 1
"""The place of the Korean font in the collection."""


@cache
def folders() -> tuple[Path, ...]:
    """Where the packages keep their fonts. Raises RenderError where one is not installed."""
    return tuple(map(_folder, PACKAGES))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RenderError(f"The fonts of {package} are missing", hint="Reinstall qualab")
    return Path(spec.origin).parent


def ordered_files() -> list[Path]:
    """Every file, those of the families in their order, then those of other scripts by name. No italics."""
    files = [path for folder in folders() for path in folder.iterdir() if path.suffix in (".ttf", ".otf", ".ttc")]
    return sorted((path for path in files if "Italic" not in path.name), key=_order)


def _order(path: Path) -> tuple[int, str]:
    return next((place for place, name in enumerate(_FIRST) if path.name.startswith(name)), len(_FIRST)), path.name


def number_of(path: Path) -> int:
    """Which font of a file: of a collection the Korean one."""
    return _KOREAN if path.suffix == ".ttc" else -1
