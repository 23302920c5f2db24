"""Everything in `qualab.stats` is for the product, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "qualab"
STATS = PACKAGE / "stats"


def names_in(node: ast.AST, *, is_stats: bool = True) -> Iterator[str]:
    """Attributes that are read, and names: in `stats` those that are read, elsewhere those imported from there."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif is_stats and isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id
        elif not is_stats and isinstance(part, ast.ImportFrom) and (part.module or "").startswith("qualab.stats."):
            yield from (alias.name for alias in part.names)


def defined(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes and constants of a module, methods, and fields."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        for part in (statement, *(statement.body if isinstance(statement, ast.ClassDef) else ())):
            target = getattr(part, "target", None) or next(iter(getattr(part, "targets", ())), part)
            if name := getattr(target, "name", None) or getattr(target, "id", None):
                yield name, part


def test_the_product_reaches_everything_in_stats() -> None:
    used = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        used.update(names_in(ast.parse(path.read_text(encoding="utf-8")), is_stats=path.parent == STATS))
    everything = [(name, Counter(names_in(part))) for path in STATS.glob("*.py") for name, part in defined(path)]
    assert [name for name, own in everything if used[name] <= own[name] and not name.startswith("__")] == []


@pytest.mark.parametrize("module", sorted(path.stem for path in STATS.glob("[a-z]*.py")))
def test_examples_in_docstrings_hold(module: str) -> None:
    loaded = importlib.import_module(f"qualab.stats.{module}")
    assert doctest.testmod(loaded, optionflags=doctest.ELLIPSIS).failed == 0


def test_importing_the_statistics_loads_nothing_heavy() -> None:
    modules = [f"qualab.stats.{path.stem}" for path in sorted(STATS.glob("[a-z]*.py"))]
    program = f"import json, sys, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    heavy = ("pandas", "scipy.special", "scipy.stats", "scipy.optimize", "sklearn", "lm_eval")
    assert [name for name in loaded if name.startswith(heavy)] == []
    assert [name for name in loaded if name.startswith("qualab.") and not name.startswith("qualab.stats")] == [
        "qualab.errors"
    ]
