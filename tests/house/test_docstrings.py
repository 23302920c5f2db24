from __future__ import annotations

import ast

from tests.house.modules import modules


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        module.name
        for module in modules().values()
        if not module.name.rpartition(".")[2].startswith("_")
        and module.tree.body
        and ast.get_docstring(module.tree) is None
    ]
    assert silent == []
