"""The package's modules and who imports whom, read from the source: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "qualab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    path: Path
    tree: ast.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One statement's import of one module of the package. A lazy one stands inside a function."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, Module]:
    found = (_read(path) for path in sorted((ROOT / PACKAGE).rglob("*.py")))
    return {module.name: module for module in found}


def _read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name=name, path=path, tree=ast.parse(path.read_text(), filename=str(path)))


@cache
def imports() -> tuple[Import, ...]:
    """Every import within the package, lazy ones and those for type checkers alone included."""
    names = frozenset(modules())
    return tuple(found for module in modules().values() for found in imports_of(module, names))


def imports_of(module: Module, names: frozenset[str]) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        for target in _targets(node):
            if (name := _longest_module(target, names)) and name != module.name:
                yield Import(importer=module.name, imported=name, line=getattr(node, "lineno", 0))


def _targets(node: ast.AST) -> Iterator[str]:
    """Dotted names that a statement may import: `from a import b` is a.b where that is a module, else a."""
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def _longest_module(target: str, names: frozenset[str]) -> str | None:
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target or None
