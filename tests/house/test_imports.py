from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from tests.house.modules import Import, imports, imports_of, modules

BELOW = {"errors", "stats", "model"}
ROOMS = {*BELOW, "harness", "endpoints", "store", "planning", "analysis"}
ABOVE = {*ROOMS, "words", "run", "report", "imports", "managed", "settings"}
ALLOWED = {
    "qualab": set(),
    "errors": set(),
    "stats": {"errors"},
    "model": {"errors", "stats"},
    "settings": {"errors", "model"},
    "harness": BELOW,
    "endpoints": BELOW,
    "store": BELOW,
    "analysis": {*BELOW, "store"},
    "planning": {*BELOW, "analysis", "store"},
    "words": BELOW,
    "run": {*ROOMS, "settings", "words"},
    "report": {*ROOMS, "run", "words"},
    "imports": {*ROOMS, "run", "words"},
    "managed": {*ROOMS, "settings"},
    "bootstrap": ABOVE,
    "service": {*ABOVE, "bootstrap"},
    "cli": {*ABOVE, "bootstrap", "service"},
    "api": {*ABOVE, "bootstrap", "cli"},
    "__main__": {"cli"},
}
"""Room -> rooms that it may import, itself and the package's version aside."""

HEAVY = {"alembic", "datasets", "gguf", "lm_eval", "nltk", "pandas", "pyreqwest", "scipy", "sqlalchemy"}
HEAVY |= {"fastapi", "tokenizers", "transformers", "uvicorn", "xllamacpp"}


def layer(name: str) -> str:
    """The room of a module: qualab.run.run is of run, qualab of qualab. The report's words are a room of their own."""
    if name.startswith("qualab.report.words"):
        return "words"
    return name.split(".")[1] if "." in name else name


def against_the_arrows(found: Import) -> bool:
    importer, imported = layer(found.importer), layer(found.imported)
    return imported not in ALLOWED[importer] | {importer, "qualab"}


def test_every_layer_has_its_arrows() -> None:
    assert {layer(name) for name in modules()} <= ALLOWED.keys()
    assert len(imports()) > len(modules())


def test_imports_follow_the_arrows() -> None:
    assert [str(found) for found in imports() if against_the_arrows(found)] == []


def test_no_import_cycle_lazy_imports_counted() -> None:
    graph: dict[str, set[str]] = {}
    for found in imports():
        graph.setdefault(found.importer, set()).add(found.imported)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_public_module_has_a_docstring() -> None:
    public = {name: tree for name, tree in modules().items() if not name.rpartition(".")[2].startswith("_")}
    assert [name for name, tree in public.items() if tree.body and not ast.get_docstring(tree)] == []


def test_imports_are_absolute() -> None:
    nodes = [(name, node) for name, tree in modules().items() for node in ast.walk(tree)]
    assert [(name, node.lineno) for name, node in nodes if isinstance(node, ast.ImportFrom) and node.level] == []


def test_the_reader_sees_every_form_of_import() -> None:
    names = {"qualab", "qualab.run", "qualab.run.run", "qualab.run.score", "qualab.errors"}
    for source, expected in {
        "import qualab.errors": ["qualab.errors"],
        "import numpy, qualab.run.score as s": ["qualab.run.score"],
        "from qualab.run import score, nothing": ["qualab.run.score", "qualab.run"],
        "from qualab import __version__": ["qualab"],
        "def f():\n    from qualab.errors import UsageError": ["qualab.errors"],
        "if TYPE_CHECKING:\n    from qualab.run.score import x": ["qualab.run.score"],
        "importlib.import_module('qualab.errors')": ["qualab.errors"],
        "from qualab.run.run import itself": [],
        "import qualabel": [],
    }.items():
        assert [found.imported for found in imports_of("qualab.run.run", ast.parse(source), names)] == expected, source


@pytest.mark.parametrize(
    "name", ["qualab.cli.main", "qualab.model.ports", "qualab.managed.embedded", "qualab.harness.process"]
)
def test_what_answers_at_once_imports_nothing_heavy(name: str) -> None:
    if name not in modules():
        pytest.skip(f"there is no {name}")
    script = f"import sys, {name}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "qualab" in loaded
    assert HEAVY.intersection(loaded) == set()
