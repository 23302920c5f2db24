"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time, on however slow a machine: what passed passes again.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")
