from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.house.modules import Module, modules

LONGEST = 60
SHORT = 40
SHORT_SHARE = 0.95

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    where: str
    n_lines: int


def bodies(module: Module, source: str) -> Iterator[Body]:
    """Every function with its lines of code: without the docstring, blank lines and comments."""
    lines = source.splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            yield Body(where=f"{module.name}:{node.lineno} {node.name}", n_lines=_n_lines(node, lines))


def _n_lines(function: Function, lines: list[str]) -> int:
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not statements:
        return 0
    first, last = statements[0].lineno, function.end_lineno or statements[-1].lineno
    code = (line.strip() for line in lines[first - 1 : last])
    return sum(1 for line in code if line and not line.startswith("#"))


def every_body() -> list[Body]:
    return [body for module in modules().values() for body in bodies(module, module.path.read_text())]


def test_no_function_is_long() -> None:
    assert [f"{body.where}: {body.n_lines}" for body in every_body() if body.n_lines > LONGEST] == []


def test_nearly_all_functions_are_short() -> None:
    found = every_body()
    assert len(found) > 100
    assert sum(body.n_lines < SHORT for body in found) / len(found) >= SHORT_SHARE


def test_lines_are_counted_without_docstring_blanks_and_comments() -> None:
    source = 'def f():\n    """One\n    two."""\n    a = (\n        1,\n    )\n\n    # why\n    return a\n'
    path = next(iter(modules().values())).path
    (body,) = bodies(Module(name="m", path=path, tree=ast.parse(source)), source)
    assert body.n_lines == 4


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        module.name
        for module in modules().values()
        if not module.name.rpartition(".")[2].startswith("_")
        and module.tree.body
        and ast.get_docstring(module.tree) is None
    ]
    assert silent == []
