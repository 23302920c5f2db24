"""qualab: does turning a drafter on change what a served model answers?"""

from __future__ import annotations

__version__ = "0.2.0"
