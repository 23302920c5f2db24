"""Everything in `qualab.stats` is for the product, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "qualab"
STATS = PACKAGE / "stats"

Place = tuple[str, str]
"""A module of `qualab.stats`, and a name in it: of a function, class, constant, or `Class.member`."""


def names_in(node: ast.AST) -> tuple[set[str], set[str]]:
    """Names that are read but not bound in it, and attributes."""
    parts = list(ast.walk(node))
    bound = {part.arg for part in parts if isinstance(part, ast.arg)}
    bound |= {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    read = {part.id for part in parts if isinstance(part, ast.Name)}
    return read - bound, {part.attr for part in parts if isinstance(part, ast.Attribute)}


def imports_of(tree: ast.AST) -> Iterator[tuple[str, Place]]:
    for part in ast.walk(tree):
        if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("qualab.stats."):
            yield from ((one.asname or one.name, (str(part.module).split(".")[-1], one.name)) for one in part.names)


def bound_by(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    target = statement.target if isinstance(statement, ast.AnnAssign) else None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def unreachable(package: Path) -> list[str]:
    """What no module outside of `stats` can reach; members of classes are reached by any attribute of their name."""
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in (package / "stats").glob("*.py")}
    imported = {module: dict(imports_of(tree)) for module, tree in trees.items()}
    defined: dict[Place, ast.stmt] = {}
    members: dict[Place, dict[str, ast.stmt]] = defaultdict(dict)
    for module, tree in trees.items():
        for statement in tree.body:
            if name := bound_by(statement):
                defined[module, name] = statement
                inside = statement.body if isinstance(statement, ast.ClassDef) else []
                members[module, name] = {member: one for one in inside if (member := bound_by(one))}
    waiting: list[Place] = []
    attributes: set[str] = set()
    for path in package.rglob("*.py"):
        if path.parent != package / "stats":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            waiting += [place for _, place in imports_of(tree)]
            attributes |= names_in(tree)[1]
    reached: set[Place] = set()

    def enter(module: str, node: ast.AST) -> None:
        names, more = names_in(node)
        attributes.update(more)
        waiting.extend(
            (module, name) if (module, name) in defined else imported[module].get(name, ("", "")) for name in names
        )

    while waiting:
        while waiting:
            place = waiting.pop()
            if place in defined and place not in reached:
                reached.add(place)
                statement = defined[place]
                if not isinstance(statement, ast.ClassDef):
                    enter(place[0], statement)
        for place in [place for place in reached if members[place]]:
            for name in [name for name in members[place] if name in attributes or name.startswith("__")]:
                enter(place[0], members[place].pop(name))
    left = [place for place in defined if place not in reached]
    left += [(module, f"{name}.{member}") for module, name in reached for member in members[module, name]]
    return sorted(f"{module}.{name}" for module, name in left)


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
