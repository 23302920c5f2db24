from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house.modules import Import, Module, imports, imports_of, modules

ALLOWED = {
    "qualab": set(),
    "errors": set(),
    "stats": {"errors"},
    "domain": {"errors", "stats"},
    "ports": {"errors", "domain"},
    "app": {"errors", "stats", "domain", "ports"},
    "adapters": {"errors", "domain", "ports"},
    "settings": {"errors", "domain"},
    "service_settings": {"errors", "domain", "settings"},
    "bootstrap": {"errors", "stats", "domain", "ports", "app", "adapters", "settings"},
    "service_bootstrap": {
        *("errors", "stats", "domain", "ports", "app", "adapters"),
        *("settings", "service_settings", "bootstrap"),
    },
    "worker_bootstrap": {
        *("errors", "stats", "domain", "ports", "app", "adapters"),
        *("settings", "service_settings", "bootstrap", "service_bootstrap"),
    },
    "api": {"errors", "domain", "ports", "app", "settings", "service_settings", "bootstrap", "service_bootstrap"},
    "cli": {
        "errors",
        "domain",
        "ports",
        "app",
        "settings",
        "service_settings",
        "bootstrap",
        "service_bootstrap",
        "worker_bootstrap",
        "api",
    },
    "__main__": {"cli"},
}
"""Layer -> layers that it may import, itself and the package's version aside."""

HEAVY = {"alembic", "datasets", "gguf", "lm_eval", "nltk", "pandas", "pyreqwest", "scipy", "sqlalchemy", "statsmodels"}
HEAVY |= {"dbos", "fastapi", "tokenizers", "transformers", "uvicorn", "xllamacpp"}


def layer(name: str) -> str:
    """The part of the package that a module belongs to: qualab.app.run is of app, qualab of qualab."""
    return name.split(".")[1] if "." in name else name


def adapter(name: str) -> str | None:
    """The adapter that a module belongs to: adapters.store.tables is of adapters.store."""
    parts = name.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "adapters" else None


def against_the_arrows(found: Import) -> bool:
    importer, imported = layer(found.importer), layer(found.imported)
    return imported not in ALLOWED[importer] | {importer, "qualab"}


def between_adapters(found: Import) -> bool:
    importer, imported = adapter(found.importer), adapter(found.imported)
    return None not in (importer, imported) and importer != imported


def cycle(found: tuple[Import, ...]) -> list[str]:
    """The modules of one import cycle, or none. A package imports its own modules: that alone is none."""
    graph: dict[str, set[str]] = {}
    for one in found:
        graph.setdefault(one.importer, set()).add(one.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def read(source: str, name: str = "qualab.app.run") -> list[str]:
    names = frozenset({"qualab", "qualab.app", "qualab.app.run", "qualab.app.score", "qualab.errors"})
    module = Module(name=name, path=Path(f"{name}.py"), tree=ast.parse(source))
    return [found.imported for found in imports_of(module, names)]


def test_every_layer_has_its_arrows() -> None:
    assert {layer(name) for name in modules()} <= ALLOWED.keys()
    assert len(imports()) > len(modules())


def test_imports_follow_the_arrows() -> None:
    assert [str(found) for found in imports() if against_the_arrows(found)] == []


def test_no_adapter_imports_another() -> None:
    assert [str(found) for found in imports() if between_adapters(found)] == []


def test_no_import_cycle_lazy_imports_counted() -> None:
    assert cycle(imports()) == []


def test_imports_are_absolute() -> None:
    relative = [
        f"{module.name}:{node.lineno}"
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import qualab.errors", ["qualab.errors"]),
        ("import numpy, qualab.app.score as s", ["qualab.app.score"]),
        ("from qualab.app import score, nothing", ["qualab.app.score", "qualab.app"]),
        ("from qualab import __version__", ["qualab"]),
        ("from . import score", ["qualab.app.score"]),
        ("from .. import errors", ["qualab.errors"]),
        ("from ..errors import UsageError", ["qualab.errors"]),
        ("def f():\n    from qualab.errors import UsageError", ["qualab.errors"]),
        ("if TYPE_CHECKING:\n    from qualab.app.score import x", ["qualab.app.score"]),
        ("importlib.import_module('qualab.errors')", ["qualab.errors"]),
        ("from qualab.app.run import itself", []),
        ("import qualabel", []),
    ],
)
def test_the_reader_sees_every_form_of_import(source: str, expected: list[str]) -> None:
    assert read(source) == expected


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("qualab.stats.counts", "qualab.domain.plan"),
        ("qualab.domain.plan", "qualab.ports"),
        ("qualab.ports", "qualab.app.run"),
        ("qualab.app.run", "qualab.adapters.store"),
        ("qualab.adapters.clock", "qualab.stats.counts"),
        ("qualab.bootstrap", "qualab.cli.main"),
        ("qualab.cli.main", "qualab.adapters.store"),
        ("qualab", "qualab.errors"),
    ],
)
def test_the_arrows_forbid_what_the_design_forbids(importer: str, imported: str) -> None:
    assert against_the_arrows(Import(importer=importer, imported=imported, line=1))


def test_adapters_are_told_apart() -> None:
    store = "qualab.adapters.store.tables"
    assert between_adapters(Import(importer=store, imported="qualab.adapters.endpoints.client", line=1))
    assert between_adapters(Import(importer=store, imported="qualab.adapters.clock", line=1))
    assert not between_adapters(Import(importer=store, imported="qualab.adapters.store.rows", line=1))


def test_a_cycle_is_seen() -> None:
    a, b = "qualab.app.a", "qualab.app.b"
    there, back = Import(importer=a, imported=b, line=1), Import(importer=b, imported=a, line=9)
    assert cycle((there,)) == []
    assert set(cycle((there, back))) == {a, b}


@pytest.mark.parametrize(
    "name", ["qualab.cli.main", "qualab.domain", "qualab.ports", "qualab.adapters.endpoints.embedded"]
)
def test_what_answers_at_once_imports_nothing_heavy(name: str) -> None:
    if name not in modules():
        pytest.skip(f"there is no {name}")
    script = f"import sys, {name}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "qualab" in loaded
    assert HEAVY.intersection(loaded) == set()
