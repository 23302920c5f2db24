"""Random numbers of an analysis: one stream a purpose, all from the plan's hash."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qualab.domain.canonical import sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Random streams by name, all from one seed: adding a metric moves no other's."""

    seed: int

    @classmethod
    def of(cls, plan_hash: str) -> Streams:
        return cls(seed=int(sha256(f"analysis of {plan_hash}")[:12], 16))

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(sha256(name)[:12], 16)])
