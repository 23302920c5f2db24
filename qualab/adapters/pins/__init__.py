"""What runs where: images by `kubectl` and `docker`, checkpoints by their files."""

from __future__ import annotations

from qualab.adapters.pins.source import LocalPins

__all__ = ["LocalPins"]
