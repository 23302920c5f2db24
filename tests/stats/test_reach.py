"""Everything in `qualab.stats` is for the product, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "qualab"
STATS = PACKAGE / "stats"


def read_in(node: ast.AST) -> set[str]:
    """Names that are read but not bound in it, and attributes."""
    parts = list(ast.walk(node))
    bound = {part.arg for part in parts if isinstance(part, ast.arg)}
    bound |= {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    names = {part.id for part in parts if isinstance(part, ast.Name)} - bound
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str, ast.stmt]]:
    """Functions, classes, constants and members of classes: where, the bare name, and what is entered by it."""
    for statement in body:
        target = statement
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        name = target.name if isinstance(target, ast.FunctionDef | ast.ClassDef) else getattr(target, "id", None)
        if name and isinstance(statement, ast.ClassDef):
            yield f"{prefix}.{name}", name, ast.Pass()
            yield from definitions(statement.body, f"{prefix}.{name}")
        elif name:
            yield f"{prefix}.{name}", name, statement


def unreachable(package: Path) -> list[str]:
    """What no module outside of `stats` can reach, by the names that it imports and the attributes that it reads."""
    left = [
        definition
        for path in (package / "stats").glob("*.py")
        for definition in definitions(ast.parse(path.read_text(encoding="utf-8")).body, path.stem)
    ]
    reached: set[str] = set()
    for path in package.rglob("*.py"):
        if path.parent != package / "stats":
            for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("qualab.stats."):
                    reached |= {alias.name for alias in part.names}
                elif isinstance(part, ast.Attribute):
                    reached.add(part.attr)
    while found := [one for one in left if one[1] in reached or one[1].startswith("__")]:
        left = [one for one in left if one not in found]
        reached = reached.union(*(read_in(statement) for _, _, statement in found))
    return sorted(place for place, _, _ in left)


def test_the_product_reaches_everything_in_stats() -> None:
    assert unreachable(PACKAGE) == []


def test_what_nobody_uses_is_found(tmp_path: Path) -> None:
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats" / "a.py").write_text(
        "from qualab.stats.b import deep\nK = 1\nclass C:\n    x: int\n    y: int\n    def m(self): return deep()\n"
        "def used(look): return look + C().m() + C().x\ndef look(): return K\n",
        encoding="utf-8",
    )
    (tmp_path / "stats" / "b.py").write_text("def deep(): return 1\ndef dead(): return deep()\n", encoding="utf-8")
    (tmp_path / "user.py").write_text("from qualab.stats.a import used\n", encoding="utf-8")
    assert unreachable(tmp_path) == ["a.C.y", "a.K", "a.look", "b.dead"]


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
