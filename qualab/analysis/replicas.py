"""Caveats of an arm of several servers: replicas that died, and a balancer that hides some."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from qualab.model.comparison import ArmSummary
from qualab.model.engine import EngineSeen, Observation, Segment, replicas_seen
from qualab.model.names import ArmName
from qualab.model.plan import Plan
from qualab.model.reason import Reason


def replica_caveats(plan: Plan, observations: Sequence[Observation], arms: Sequence[ArmSummary]) -> Iterator[Reason]:
    """Name replicas that were left out, and URLs whose counters never saw requests that were answered there."""
    for arm in arms:
        uses, n_answers = replicas_seen(observations, arm.arm), Counter[str]()
        counted: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for use in uses:
            n_answers[use.url] += use.n_answers
            if use.finished_requests is not None:
                counted[use.url][0] += use.n_answers
                counted[use.url][1] += use.finished_requests
        lost = {use.url: use.lost for use in uses if use.lost}  # a resumed run may lose one again
        for url, why in lost.items():
            yield Reason("replica-lost", {"arm": arm.arm, "url": url, "n": n_answers[url], "why": why})
        # engines count late, and an interrupted run leaves behind what was in flight
        n_starts = sum(isinstance(seen, EngineSeen) and seen.arm is arm.arm for seen in observations)
        slack = plan.policy.concurrency * max(1, n_starts)
        for url, (n_sent, n_finished) in counted.items():
            if n_sent - n_finished > slack:
                values = {"arm": arm.arm, "url": url, "n": n_finished, "total": n_sent}
                yield Reason("balancer.replica", values)
        if not uses:
            yield from _balancer(arm, observations, slack=slack)


def _balancer(arm: ArmSummary, observations: Sequence[Observation], *, slack: int) -> Iterator[Reason]:
    own = [seen for seen in observations if isinstance(seen, Segment) and seen.arm is arm.arm]
    starts = [reading.started_at_s for seen in own for reading in (seen.before, seen.after) if reading]
    changes = [now for before, now in zip((None, *starts), starts, strict=False) if now != before]
    if len(changes) > len(set(changes)):  # a process that was gone is back
        yield Reason("balancer.starts", {"arm": arm.arm, "n": len(set(changes))})
        return
    n_sent = n_finished = 0
    for seen in own:
        before, after = (getattr(reading, "finished_requests", None) for reading in (seen.before, seen.after))
        if before is not None and after is not None and not seen.has_restarted:
            n_sent += seen.attempts
            n_finished += after - before
    # what got no answer may not be counted
    if n_sent - n_finished > slack + arm.retries + arm.n_requests - arm.n_answers:
        yield Reason("balancer", {"arm": arm.arm, "n": n_finished, "total": n_sent})


def known_fingerprints(observations: Sequence[Observation], arm: ArmName) -> set[str]:
    """Collect the fingerprints that an arm's replicas have given."""
    return {name for use in replicas_seen(observations, arm) for name in use.fingerprints}


def mixed_fingerprints(observations: Sequence[Observation], arm: ArmSummary) -> tuple[str, ...]:
    """Return the fingerprints of an arm's answers where one server gave several; replicas may differ in theirs."""
    by_url: defaultdict[str, set[str]] = defaultdict(set)
    for use in replicas_seen(observations, arm.arm):
        by_url[use.url] |= set(use.fingerprints)
    is_known = bool(by_url) and arm.fingerprints.keys() <= {"", *known_fingerprints(observations, arm.arm)}
    mixed = max(by_url.values(), key=len) if is_known else arm.fingerprints
    return tuple(sorted(mixed)) if len(mixed) > 1 else ()
