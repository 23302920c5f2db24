"""`python -m qualab`."""

from __future__ import annotations

from qualab.cli.main import main

main()
