"""Seals: what tells whether anything that stands in the database was altered after it was stored.

An analysis holds the hash of its plan and of the data that it came of. Its seal hashes that together with the seal of
the analysis before it, the first with the plan's hash: a chain in which nothing can be changed, left out or put in
between unnoticed. A seal has no secret in it: whoever can write to the database can make all of it anew. Compare with a
seal that was written down elsewhere: in a report, or a sign-off.
"""

from __future__ import annotations

from dataclasses import dataclass

from qualab.domain.canonical import sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedAnalysis:
    """One stored analysis as it stands there."""

    plan_hash: str
    body: str
    """Its canonical JSON."""
    previous: str
    """The seal before it, or the hash of the comparison's plan. Empty in analyses of versions without seals."""
    seal: str

    @property
    def is_sealed(self) -> bool:
        return bool(self.seal)


def seal_of(body: str, *, previous: str) -> str:
    """The seal of an analysis."""
    return sha256(f"{previous}\n{body}")
