"""The package's modules and who imports whom, read from the source: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Import(NamedTuple):
    """One statement's import of one module of the package."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def modules() -> dict[str, ast.Module]:
    paths = {path: path.relative_to(ROOT).with_suffix("").parts for path in sorted((ROOT / "qualab").rglob("*.py"))}
    return {".".join(parts).removesuffix(".__init__"): ast.parse(path.read_text()) for path, parts in paths.items()}


@cache
def imports() -> tuple[Import, ...]:
    """Every import within the package, lazy ones and those for type checkers alone included."""
    return tuple(found for name, tree in modules().items() for found in imports_of(name, tree, modules()))


def imports_of(importer: str, tree: ast.Module, names: Container[str]) -> Iterator[Import]:
    for node in ast.walk(tree):
        for target in _targets(node):
            parts = target.split(".")
            prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
            name = next((prefix for prefix in prefixes if prefix in names), importer)
            if name != importer:
                yield Import(importer, name, getattr(node, "lineno", 0))


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
