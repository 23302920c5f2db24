"""A real pair of endpoints out of two wheels: llama.cpp's server and a small model, drafter off and drafter on."""

from __future__ import annotations

from qualab.managed.embedded.models import EmbeddedModels, prepare_models
from qualab.managed.embedded.pair import Drafter, embedded_pair

__all__ = ["Drafter", "EmbeddedModels", "embedded_pair", "prepare_models"]
