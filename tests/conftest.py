"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time: what passed passes again. `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")
